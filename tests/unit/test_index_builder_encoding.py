from fakes import HashEncoder

from polyrank.index_builder.build.encoding import encoded_by


def test_the_model_is_a_source_that_reports_each_of_its_batches() -> None:
    encoder = HashEncoder(longest=2)
    done: list[int] = []
    source = encoded_by(encoder)
    made, truncated = source(100, ["a", "b", "c"], ["x", "yyy", "zz"], done.append)
    assert (made.first == [encoder.vector(text) for text in ("x", "yyy", "zz")]).all()
    assert truncated == 1
    source(103, ["d"], ["w"], done.append)
    assert done == [3, 1]
