"""The parent's side of a runner: start it, talk frames with it, watch it, start it again.

A runner is a child process that owns the model and may die at any time (llama.cpp ends its process on
some errors). Here its death is an ordinary event: requests in flight fail with ``Unavailable``, new ones
are refused until the next runner is ready, the calling process goes on. Nothing here knows HTTP, and
nothing of the model is imported.
"""

from server.supervisor.generation import AnswerFrame, Generation
from server.supervisor.supervisor import RUNNER, State, Supervisor, Timing

__all__ = ["RUNNER", "AnswerFrame", "Generation", "State", "Supervisor", "Timing"]
