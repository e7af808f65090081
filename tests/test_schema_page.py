"""The page on schemas says what the code does."""

from __future__ import annotations

from schema_page import PAGE, page


def test_the_table_of_keywords_is_the_codes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page()
