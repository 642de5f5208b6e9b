"""What batch size means in libraries of language-model RL, and what to change with it.

    print(language.rescale("trl", {"num_generations": 8, "num_processes": 8}, devices=16))
    language.read("verl", {"data.train_batch_size": 1024}).minibatch     # sequences

It trains nothing: settings are read as text, and the answer is text. A key that is not given has
the library's own default.
"""

from isobatch.language.batch import SequenceBatch
from isobatch.language.moving import LIBRARIES, Resized, find, read, rescale
from isobatch.language.words import Given, parse

__all__ = ["LIBRARIES", "Given", "Resized", "SequenceBatch", "find", "parse", "read", "rescale"]
