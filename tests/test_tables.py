"""Tables of text: every column as wide as its widest cell."""

from __future__ import annotations

from lowtide.tables import table_lines


def test_cells_are_aligned_and_lines_have_no_blanks_at_their_end() -> None:
    rows = [("what", "bytes", ""), ("a longer name", "7", "less"), ("", "1,234", "")]
    assert table_lines(rows, align="<><") == [
        "what           bytes",
        "a longer name      7  less",
        "               1,234",
    ]
