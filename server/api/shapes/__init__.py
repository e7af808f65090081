"""The JSON of requests and answers as types, for the document at ``/openapi.json``. They describe what the
decoders take and the encoders write and do neither: tests hold them to both.

Members that a request need not have may be null as well, and those that are not named here are ignored.
"""
