"""From files to examples. Every reader is a generator that streams, remembers lines, and raises only `UserError`.

| reader | files | gives |
|---|---|---|
| `read_rows` | csv, tsv, jsonl, parquet, xlsx, txt | `TextRow` |
| `read_tagged` | CoNLL columns, CoNLL-U, jsonl | `TaggedSentence` |
| `read_questions` | SQuAD json, jsonl | `Question` |
| `read_choices` | jsonl | `Choice` |
| `read_minimal_pairs` | jsonl, folders of it | `MinimalPair` |
| `read_documents` | txt, jsonl, parquet, folders | `str` |

All take compressed files (.gz, .xz, .zst, .bz2) and `encoding=`; those of rows and objects also tables in memory
(`frames.in_memory`).
"""

from bertkit.data.readers.documents import document_files, read_documents
from bertkit.data.readers.questions import read_choices, read_minimal_pairs, read_questions
from bertkit.data.readers.rows import columns_of, read_rows
from bertkit.data.readers.tagged import read_tagged
from bertkit.files.open import kind_of, open_text

__all__ = [
    "columns_of",
    "document_files",
    "kind_of",
    "open_text",
    "read_choices",
    "read_documents",
    "read_minimal_pairs",
    "read_questions",
    "read_rows",
    "read_tagged",
]
