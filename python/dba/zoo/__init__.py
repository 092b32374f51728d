"""The zoo: the attentions that DBA is compared with, by name, on the C++ library's own code.

>>> dba.zoo.names()[:4]
['softmax', 'dba', 'local', 'sparse']
>>> attention = dba.zoo.make("performer", 64, 4, features=128)
>>> y, _ = attention(torch.randn(2, 1000, 64))
"""

from .attention import ZooAttention
from .make import make
from .records import Capabilities, Member, Option, member, members, names

__all__ = ["Capabilities", "Member", "Option", "ZooAttention", "make", "member", "members", "names"]
