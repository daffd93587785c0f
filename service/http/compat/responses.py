"""What answers in other systems' dialects hold; as in responses.py, the models document and check."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel

from polyrank.service.http.native.responses import Out


class UsageOut(Out):
    """Tokens that the model read."""

    prompt_tokens: int
    total_tokens: int


class DocumentOut(Out):
    """A document's text."""

    text: str


class RerankResultOut(Out):
    """A document in its place."""

    index: int = Field(description="its place in the request")
    relevance_score: float = Field(description="0 to 1: the sigmoid of the model's score; with `raw_scores`, the score")
    document: DocumentOut | str | None = Field(default=None, description="absent unless asked for; infinity: a string")
    id: JsonValue = Field(default=None, description="as it was sent")
    metadata: JsonValue = Field(default=None, description="as it was sent")


class ApiVersionOut(Out):
    """Which of Cohere's interfaces this looks like."""

    version: str


class BilledOut(Out):
    """What Cohere would bill."""

    search_units: int


class TokensOut(Out):
    """Cohere's `usage`."""

    input_tokens: int
    output_tokens: int


class MetaOut(Out):
    """What Cohere tells beside the results."""

    api_version: ApiVersionOut
    billed_units: BilledOut
    tokens: TokensOut
    warnings: list[str] = Field(description="what was cut")


class CompatRerankOut(Out):
    """The answer to clients of Cohere, Jina, vLLM and infinity."""

    id: str
    object: Literal["rerank"]
    model: str
    created: int
    results: list[RerankResultOut]
    usage: UsageOut
    meta: MetaOut


class TeiRankOut(Out):
    """A text in its place, as TEI tells it."""

    index: int
    score: float
    text: str | None = Field(default=None, description="absent unless asked for")


class TeiRerankOut(RootModel[list[TeiRankOut]]):
    """TEI's answer."""


class VoyageResultOut(Out):
    """A document in its place, as Voyage tells it."""

    index: int
    relevance_score: float
    document: str | None = None
    id: JsonValue = None
    metadata: JsonValue = None


class VoyageUsageOut(Out):
    """Tokens that the model read."""

    total_tokens: int


class VoyageRerankOut(Out):
    """Voyage's answer."""

    object: Literal["list"]
    data: list[VoyageResultOut]
    model: str
    usage: VoyageUsageOut


class AnyRerankOut(RootModel[CompatRerankOut | TeiRerankOut | VoyageRerankOut]):
    """The dialect's answer."""


class EmbeddingOut(Out):
    """A text's vector, of length 1."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="a string: base64 of float32, little-endian")


class EmbeddingsOut(Out):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingOut]
    model: str
    usage: UsageOut
    id: str
    created: int


class EmbedOut(RootModel[list[list[float]]]):
    """TEI's answer: the vectors, in the order of the texts."""


class TokenOut(Out):
    """A token, and where it stands in the text; nowhere where it is special."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TokenizeOut(RootModel[list[list[TokenOut]]]):
    """Tokens of each text, uncut."""


class SimilarityOut(RootModel[list[float]]):
    """Cosines, in the order of the sentences."""


class ServedModelOut(Out):
    """A model that requests may name."""

    id: str
    object: Literal["model"]
    owned_by: Literal["polyrank"]
    created: int = Field(description="when it was loaded, in seconds since the epoch; 0: with the server")
    capabilities: list[Literal["rerank", "embed"]]


class ModelsOut(Out):
    """The models that are served; the first reranks."""

    object: Literal["list"]
    data: list[ServedModelOut]


class AnyErrorOut(Out):
    """An error, for clients of TEI, Cohere, Jina, vLLM and Voyage at once."""

    detail: str
    message: str
    error: str
    error_type: str
    code: int
    request_id: str


class TeiErrorOut(Out):
    """An error, as TEI tells it."""

    error: str
    error_type: str = Field(examples=["Validation", "Overloaded"])


class DetailErrorOut(Out):
    """An error, as Voyage tells it."""

    detail: str


class OpenAiErrorDetailOut(Out):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiErrorOut(Out):
    """An error, as OpenAI and infinity tell it."""

    error: OpenAiErrorDetailOut


class RerankErrorOut(RootModel[AnyErrorOut | TeiErrorOut | DetailErrorOut | OpenAiErrorOut]):
    """An error in the dialect's form; the first one where the dialect is not known yet."""


class LiveOut(BaseModel):
    """Open Inference Protocol: alive."""

    model_config = ConfigDict(extra="forbid")

    live: bool


class ReadyOut(BaseModel):
    """Open Inference Protocol: ready."""

    model_config = ConfigDict(extra="forbid")

    ready: bool
