"""TensorHub: model weights, published in place by trainers and read straight from their memory by rollouts.

A reference server knows who holds which version; readers read from those, and serve on what they have read.
"""

from tensorhub import _core
from tensorhub.client import *  # noqa: F403
from tensorhub.client import __all__ as _client
from tensorhub.copies import *  # noqa: F403
from tensorhub.copies import __all__ as _copies
from tensorhub.errors import *  # noqa: F403
from tensorhub.errors import __all__ as _errors
from tensorhub.reports import *  # noqa: F403
from tensorhub.reports import __all__ as _reports
from tensorhub.server import *  # noqa: F403
from tensorhub.server import __all__ as _server
from tensorhub.workers import *  # noqa: F403
from tensorhub.workers import __all__ as _workers

__version__: str = _core.version
__all__ = ["__version__", *_client, *_copies, *_errors, *_reports, *_server, *_workers]  # noqa: PLE0604
