"""The command `tensorhub`: a reference server, and questions to one."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import tensorhub
from tensorhub import _core

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def _check_admission(given: argparse.Namespace) -> None:
    if bool(given.keys) != bool(given.allow):
        _refuse("--keys and --allow belong together")
    if given.keys and given.insecure:
        _refuse("give either --insecure or --keys, not both")
    if not given.keys and not given.insecure and not _core.is_local_address(given.address):
        _refuse(
            f"other machines reach {given.address}, and without keys each of their processes could read and replace "
            "every model: make keys (tensorhub keys FOLDER NAME), and name them with --keys and --allow; or say "
            "--insecure, in a network where every process is trusted"
        )


def _refuse(why: str) -> NoReturn:
    print(f"tensorhub: {why}", file=sys.stderr)
    sys.exit(2)


def _serve(given: argparse.Namespace) -> int:
    _check_admission(given)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    public_key, secret_key = tensorhub.read_keys(given.keys) if given.keys else ("", "")
    allowed = tensorhub.read_allow_list(given.allow) if given.allow else {}
    ends = {signal.SIGINT, signal.SIGTERM}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # in all threads, which the server starts from here
    try:
        with tensorhub.ReferenceServer(
            given.address, public_key=public_key, secret_key=secret_key, allowed=allowed
        ) as server:
            print(server.address, flush=True)
            signal.sigwait(ends)
    finally:
        while signal.sigpending() & ends:  # a second one, such as that of a supervisor to the whole group
            signal.sigwait(ends)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _client(given: argparse.Namespace) -> tensorhub.ServerClient:
    if bool(given.keys) != bool(given.server_key):
        _refuse("--keys and --server-key belong together")
    if not given.keys:
        return tensorhub.ServerClient(given.server)
    public_key, secret_key = tensorhub.read_keys(given.keys)
    keys = tensorhub.Security(tensorhub.read_public_key(given.server_key), public_key, secret_key)
    return tensorhub.ServerClient(given.server, security=keys)


def _models(given: argparse.Namespace) -> int:
    with _client(given) as client:
        models = client.models(given.model, given.timeout)
    for model in models:
        available = " ".join(map(str, model.available)) or "none"
        print(
            f"model {model.name}: {model.shards} shards, {model.bytes / 1e6:.1f} MB, latest version {model.latest}, "
            f"available: {available}"
        )
        for each in model.replicas:
            words = ["torn"] * each.torn + ["spot"] * each.spot
            print(
                f"  replica {each.name}: {each.shards_joined} of {model.shards} shards joined, version {each.version}, "
                f"{each.readers} readers{''.join(f', {word}' for word in words)}"
            )
    return 0


def _stuck(given: argparse.Namespace) -> int:
    with _client(given) as client:
        entries = client.stuck(given.model, given.older_than, given.timeout)
    for each in entries:
        print(f"{each.waited_seconds:8.1f} s  {each.model}/{each.replica}/{each.shard}: {each.kind}. {each.advice}")
    return 3 if entries else 0


def _keys(given: argparse.Namespace) -> int:
    tensorhub.write_keys(given.folder, given.name, *tensorhub.make_keys())
    return 0


def _parser() -> argparse.ArgumentParser:
    out = argparse.ArgumentParser(prog="tensorhub", description=__doc__)
    out.add_argument("--version", action="version", version=tensorhub.__version__)
    commands = out.add_subparsers(required=True, metavar="command")

    server = commands.add_parser("server", help="serve until SIGINT or SIGTERM; prints its address")
    server.add_argument("--address", default="tcp://127.0.0.1:5570", help="where to listen (%(default)s)")
    server.add_argument("--keys", metavar="FILE", help="the server's .secret file: only known workers are admitted")
    server.add_argument("--allow", metavar="FILE", help="public keys, names and rules, a line for each")
    server.add_argument("--insecure", action="store_true", help="other machines may connect, and nobody needs a key")
    server.set_defaults(run=_serve)

    for name, run, text in (
        ("models", _models, "what the server knows of models and replicas"),
        ("stuck", _stuck, "who waits for what; exit status 3 if somebody does"),
    ):
        question = commands.add_parser(name, help=text)
        question.add_argument("server", help="its address, such as tcp://127.0.0.1:5570")
        question.add_argument("--model", default="", help="one of them (all)")
        question.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS")
        question.add_argument("--keys", metavar="FILE", help="a .secret file of a worker")
        question.add_argument("--server-key", metavar="FILE", help="the server's .public file")
        question.set_defaults(run=run)
    question.add_argument("--older-than", type=float, default=1.0, metavar="SECONDS")

    keys = commands.add_parser("keys", help="write FOLDER/NAME.secret and FOLDER/NAME.public")
    keys.add_argument("folder")
    keys.add_argument("name")
    keys.set_defaults(run=_keys)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Exit status: 0; 1: it failed; 2: wrong usage; 3: somebody is stuck."""
    given = _parser().parse_args(arguments)
    try:
        return int(given.run(given))
    except tensorhub.Error as e:
        print(f"tensorhub: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
