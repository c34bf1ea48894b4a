"""docs/coverage.md is what coverage_page.py finds."""

import coverage_page


def test_the_page_is_up_to_date():
    assert coverage_page.PAGE.read_text() == coverage_page.page(), "write it again: tools/env python tests/client/python/coverage_page.py"


def test_an_operator_that_a_row_says_is_said_to_be_covered():
    entry = coverage_page.survey()[coverage_page.torch.ops.aten.mul.Tensor]
    assert {"f32", "bf16", "i64"} <= entry.dtypes and entry.is_differentiated and entry.takes_symbols
