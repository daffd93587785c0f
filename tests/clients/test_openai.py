"""OpenAI's own client."""

import openai
import pytest


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(api_key="key", base_url=f"{url}/v1", max_retries=0)


def test_base64_is_what_it_asks_for_and_equals_floats(client: openai.OpenAI, texts: list[str]) -> None:
    asked = client.embeddings.create(model="any", input=texts)
    floats = client.embeddings.create(model="any", input=texts, encoding_format="float")
    assert [each.index for each in asked.data] == [0, 1, 2]
    for one, other in zip(asked.data, floats.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(value * value for value in one.embedding) == pytest.approx(1, abs=1e-5)
    assert asked.usage.total_tokens == floats.usage.prompt_tokens > 10


def test_one_text(client: openai.OpenAI, texts: list[str]) -> None:
    [only] = client.embeddings.create(model="any", input=texts[0]).data
    assert len(only.embedding) == 384


def test_other_dimensions_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match="have 384"):
        client.embeddings.create(model="any", input="a", dimensions=10)


def test_models(client: openai.OpenAI) -> None:
    names = [each.id for each in client.models.list()]
    assert ["chat-uni" in names[0], "chat-poly" in names[1]] == [True, True]
