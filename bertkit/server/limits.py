"""Every bound of the server in one place."""

from __future__ import annotations

from dataclasses import dataclass, fields

from bertkit.errors import UserError


@dataclass(frozen=True)
class Limits:
    """What one request may hold, and how much may wait. Texts are measured in characters, because a text's tokens are
    known only after the work that has to be bounded."""

    body: int = 2_000_000  # bytes of one request
    items: int = 32  # texts of one request, as TEI has it
    openai_items: int = 2_048  # texts of one request to /v1/embeddings, as OpenAI has it
    characters: int = 100_000  # of all texts of one request
    waiting: int = 512  # requests in the queue
    waiting_characters: int = 1_000_000  # of all requests in the queue
    together: int = 65_536  # characters computed together: some eight batches of the encoder
    seconds: float = 30.0  # from a request's arrival to its answer
    body_seconds: float = 10.0  # for a client to send its request
    stop_seconds: float = 20.0  # for accepted requests after a signal to stop
    guesses: int = 2_000  # masks times guesses of one request

    def __post_init__(self) -> None:
        for one in fields(self):
            if getattr(self, one.name) <= 0:
                raise UserError(f"The limit '{one.name}' is {getattr(self, one.name)}; it must be more than 0.")
