# ruff: noqa: I001  (in reading order)
from .reading import Omission as Omission, Reading as Reading
from .summary import summary as summary
from .hugging_face import read_hugging_face as read_hugging_face
from .deepspeed import read_deepspeed as read_deepspeed
from .megatron import parse_megatron as parse_megatron
from .torchtitan import read_torchtitan as read_torchtitan
from .writing import Written as Written, write as write
