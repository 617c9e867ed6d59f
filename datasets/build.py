"""Build corpora of the catalogue into the cache, and say what they are: `python datasets/build.py [name ...]`.

Without a name: the one that needs no network. The labs do this by themselves; this is for preparing a classroom.
"""

import sys

from lablib.data import CORPORA, CorpusUnavailableError, cache_folder, load_corpus


def main(names: list[str]) -> int:
    for name in names or ["python-stdlib"]:
        try:
            corpus = load_corpus(name)
        except (ValueError, OSError, CorpusUnavailableError) as error:
            print(error, file=sys.stderr)
            return 1
        print(f"{name}: {CORPORA[name]['title']}")
        print(f"  {corpus.source}\n  {corpus.size_bytes:,} bytes, sha256 {corpus.sha256}\n  in {cache_folder()}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
