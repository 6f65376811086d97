"""The schemas of requests: TEI's, OpenAI's and ours."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from fastapi.exceptions import RequestValidationError
from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

# What a schema says beside what is checked: checks that come later have a status of their own (an empty list: 400).
NOT_EMPTY: Any = {"minItems": 1}
ID, DIMENSIONS, MASKED, PROMPT = "Id", "Dimensions", "Masked", "Prompt name"  # depend on the models: see errors.py
Id = Annotated[int, WithJsonSchema({"type": "integer", "minimum": 0, "title": ID})]
Ids = Annotated[list[Id], Field(json_schema_extra=NOT_EMPTY)]
Dimensions = Annotated[int, Field(ge=1), WithJsonSchema({"type": "integer", "minimum": 1, "title": DIMENSIONS})]
Direction = Literal["Left", "Right", "left", "right"]


def _text(value: str) -> str:
    """Refuse strings in a request's body that JSON allows but that are not text: NUL and lone surrogates."""
    if "\0" in value:
        raise ValueError("a text contains a NUL character: remove it")
    try:
        value.encode()  # quicker than to look at each character
    except UnicodeEncodeError:
        raise ValueError("a text contains a lone surrogate, which is not a character: correct it") from None
    return value


Kind = TypeVar("Kind", bound=BaseModel)  # Python 3.11 has no shorter way


def parsed(kind: type[Kind], body: dict[str, Any]) -> Kind:
    """A body in this schema; its mistakes are reported like those of a route's own body."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]) from None


NO_NUL = "^[^\\u0000]*$"
Text = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": "string", "pattern": NO_NUL})]
Masked = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": "string", "pattern": NO_NUL, "title": MASKED})]
NonEmpty = Annotated[str, AfterValidator(_text), WithJsonSchema({"type": "string", "pattern": NO_NUL, "minLength": 1})]


class Body(BaseModel):
    """A request to TEI's routes. Unknown keys are ignored, as in TEI; `model` is ours."""

    model_config = ConfigDict(strict=True)
    model: str | None = None


class Cut(Body):
    """What to do with texts that are too long. truncate null: the server's setting, else windows."""

    truncate: bool | None = None
    truncation_direction: Direction = "Right"


PromptName = Annotated[str, WithJsonSchema({"type": "string", "title": PROMPT})]


class Prompted(BaseModel):
    """A body that may say what is put before each text: a prompt of the model by its name, or (ours) in words.

    Without either, it is the model's default prompt, if it has one.
    """

    prompt_name: PromptName | None = None
    prompt: Text | None = None

    @model_validator(mode="after")
    def _one_prompt(self) -> Any:
        if self.prompt_name is not None and self.prompt is not None:
            raise ValueError("send prompt_name or prompt, not both")
        return self


class EmbedBody(Cut, Prompted):
    """/embed."""

    inputs: Text | Ids | list[Text | Ids] = Field(json_schema_extra=NOT_EMPTY)
    normalize: bool = True
    dimensions: Dimensions | None = None

    def listed(self) -> list[str | Ids]:
        """The inputs of an /embed body as a list."""
        if isinstance(self.inputs, str):
            return [self.inputs]
        ids = [item for item in self.inputs if isinstance(item, int)]
        return [ids] if ids else [item for item in self.inputs if not isinstance(item, int)]


ONE_OR_TWO = Field(json_schema_extra={"minItems": 1, "maxItems": 2})


class PredictBody(Cut):
    """/predict: a text, a pair [a, b], or a batch [[a], [a, b], …]."""

    inputs: Text | Annotated[list[Text], ONE_OR_TWO] | list[Annotated[list[Text], ONE_OR_TWO]] = Field(
        json_schema_extra=NOT_EMPTY
    )
    raw_scores: bool = False

    @model_validator(mode="after")
    def _one_or_two(self) -> PredictBody:
        if isinstance(self.inputs, list):
            flat = all(isinstance(item, str) for item in self.inputs)
            if any(len(item) not in (1, 2) for item in ([self.inputs] if flat and self.inputs else self.inputs)):
                raise ValueError("inputs must be a text, a pair of two texts, or a list of lists of one or two texts")
        return self

    @property
    def single(self) -> bool:
        """Whether a /predict body is one input, not a batch."""
        return isinstance(self.inputs, str) or (bool(self.inputs) and isinstance(self.inputs[0], str))

    def listed(self) -> list[str | tuple[str, ...]]:
        """The inputs of a /predict body as a list of texts or pairs."""
        rows: Any = [self.inputs] if self.single else self.inputs
        return [item if isinstance(item, str) else item[0] if len(item) == 1 else tuple(item) for item in rows]


class RerankBody(Cut):
    """/rerank. label: ours, for models that classify pairs: the label whose probability is the score."""

    query: Text
    texts: list[Text] = Field(json_schema_extra=NOT_EMPTY)
    raw_scores: bool = False
    return_text: bool = False
    label: str | None = None


class Sentences(BaseModel):
    """A text and the texts it is compared with."""

    model_config = ConfigDict(strict=True)
    source_sentence: Text
    sentences: list[Text] = Field(json_schema_extra=NOT_EMPTY)


class SimilarityParameters(Prompted):
    """How /similarity treats long texts."""

    model_config = ConfigDict(strict=True)
    truncate: bool | None = None
    truncation_direction: Direction = "Right"


class SimilarityBody(Body):
    """/similarity."""

    inputs: Sentences
    parameters: SimilarityParameters | None = None


class TokenizeBody(Body, Prompted):
    """/tokenize."""

    inputs: Text | list[Text] = Field(json_schema_extra=NOT_EMPTY)
    add_special_tokens: bool = True


class OpenAIBody(Prompted):
    """/v1/embeddings. prompt_name and prompt are ours."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str
    input: NonEmpty | Ids | list[NonEmpty] | list[Ids] = Field(json_schema_extra=NOT_EMPTY)
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions | None = None
    user: str | None = None

    def listed(self) -> list[str | Ids]:
        """The inputs of an OpenAI body as a list; OpenAI refuses empty ones."""
        single = isinstance(self.input, str) or any(isinstance(item, int) for item in self.input)
        return [self.input] if single else list(self.input)  # type: ignore[list-item, arg-type]


class OwnBody(Cut):
    """A request to our own routes: an unknown key is an error."""

    model_config = ConfigDict(strict=True, extra="forbid")


class FillBody(BaseModel):
    """/fill. `text` is an alias of `inputs`."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = None
    inputs: Masked | list[Masked] = Field(validation_alias=AliasChoices("inputs", "text"), json_schema_extra=NOT_EMPTY)
    top: int = Field(5, ge=1, le=100)


class TagBody(OwnBody):
    """/tag and /ner: a text, a list of texts, or a list of lists of words."""

    inputs: Text | list[Text] | list[Annotated[list[Text], Field(json_schema_extra=NOT_EMPTY)]] = Field(
        validation_alias=AliasChoices("inputs", "text"), json_schema_extra=NOT_EMPTY
    )


class Question(BaseModel):
    """A question and the text its answer is extracted from."""

    model_config = ConfigDict(strict=True, extra="forbid")
    question: Text
    context: Text


def _one_of_two(schema: dict[str, Any]) -> None:
    null, given = {"type": "null"}, {"not": {"type": "null"}}
    schema["oneOf"] = [
        {"required": ["question", "context"], "properties": {"question": given, "context": given, "inputs": null}},
        {"required": ["inputs"], "properties": {"question": null, "context": null, "inputs": given}},
    ]


class AnswerBody(OwnBody):
    """/answer and /qa: a question with its context, or `inputs` with one or several of these."""

    model_config = ConfigDict(strict=True, extra="forbid", json_schema_extra=_one_of_two)
    question: Text | None = None
    context: Text | None = None
    inputs: Question | list[Question] | None = Field(None, json_schema_extra=NOT_EMPTY)

    @model_validator(mode="after")
    def _one_way(self) -> AnswerBody:
        plain = self.question is not None and self.context is not None
        if plain == (self.inputs is not None) or (self.question is None) != (self.context is None):
            raise ValueError("send question and context, or inputs with both")
        return self

    @property
    def single(self) -> bool:
        """Whether an /answer body is one question."""
        return not isinstance(self.inputs, list)

    def listed(self) -> list[dict[str, str]]:
        """The questions of an /answer body as a list."""
        rows = self.inputs if isinstance(self.inputs, list) else [self.inputs] if self.inputs else None
        if rows is None:
            return [{"question": self.question or "", "context": self.context or ""}]
        return [question.model_dump() for question in rows]


class Choices(BaseModel):
    """A text and its continuations."""

    model_config = ConfigDict(strict=True, extra="forbid")
    text: Text
    choices: list[Text] = Field(min_length=1, max_length=32)


class ChooseBody(OwnBody):
    """/choose: one question with its choices, or several."""

    inputs: Choices | list[Choices] = Field(json_schema_extra=NOT_EMPTY)


class PipelineBody(Body):
    """/ and /pipeline/TASK, as Hugging Face's clients send it. `inputs` and `parameters` depend on the task."""

    model_config = ConfigDict(strict=True, extra="allow")
    inputs: Any
    parameters: dict[str, Any] | None = None


class TextParameters(BaseModel):
    """text-classification."""

    model_config = ConfigDict(strict=True, extra="forbid")
    top_k: int | None = Field(None, ge=1)
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None


class FillParameters(BaseModel):
    """fill-mask."""

    model_config = ConfigDict(strict=True, extra="forbid")
    top_k: int | None = Field(None, ge=1, le=100)


class TokenParameters(BaseModel):
    """token-classification: words of one entity are always joined."""

    model_config = ConfigDict(strict=True, extra="forbid")
    aggregation_strategy: Literal["simple", "first", "average", "max"] | None = None
    ignore_labels: list[str] | None = None


class AnswerParameters(BaseModel):
    """question-answering: the best answer alone."""

    model_config = ConfigDict(strict=True, extra="forbid")
    top_k: Literal[1] | None = None


class Table(BaseModel):
    """table-question-answering: a question, and a table by its columns."""

    model_config = ConfigDict(strict=True, extra="forbid")
    query: Text
    table: dict[Text, list[Text]] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_rows(self) -> Table:
        lengths = {len(cells) for cells in self.table.values()}
        if len(lengths) != 1 or lengths == {0}:
            raise ValueError("all columns of the table must have the same number of cells, and at least one")
        return self


class TableParameters(BaseModel):
    """table-question-answering: what the client sends by itself is allowed; rows are read in windows in any case."""

    model_config = ConfigDict(strict=True, extra="forbid")
    padding: str | None = None
    sequential: Literal[False] | None = None
    truncation: bool | None = None


class ZeroShotParameters(BaseModel):
    """zero-shot-classification: each label is put into the template, in the place of {}."""

    model_config = ConfigDict(strict=True, extra="forbid")
    candidate_labels: list[Text] = Field(min_length=1)
    multi_label: bool | None = None
    hypothesis_template: Text | None = None
