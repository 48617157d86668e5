"""`ds-advise mcp` answers the protocol's own client as the command line answers a user."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ds_advise
import pytest
from ds_advise.advisor.cli.main import run

from tests.helpers import schema_errors

mcp = pytest.importorskip("mcp")
anyio = pytest.importorskip("anyio")

ASKED = {"model": "Qwen2.5-14B", "gpus": "2x32GB", "offline": True, "no_deepspeed_estimate": True}


def with_client(folder: Path, task: Callable[[Any], Awaitable[Any]]) -> Any:
    """The task's result with a client that has started the server in the folder."""
    from mcp.client.stdio import StdioServerParameters

    root = str(Path(ds_advise.__file__).parents[1])
    started = StdioServerParameters(
        command=sys.executable, args=["-m", "ds_advise", "mcp"], cwd=folder, env={"PYTHONPATH": root}
    )

    async def connected() -> Any:
        async with mcp.Client(started) as client:
            return await task(client)

    # In a thread of its own: Playwright keeps a loop running in the thread of the tests of the page.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(anyio.run, connected).result()


def test_tools_answer_as_the_commands_and_write_only_the_file_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments of every kind; a file with other contents is not replaced. Every tool says what its arguments are and
    fits an agent's context; its schema is that of its result, and the manual is there."""

    async def task(client: Any) -> tuple[Any, ...]:
        tool = client.call_tool
        answers = [await tool("advise", ASKED | {"seq_len": "max", "lora_rank": 4, "method": "lora"})]
        assert list(tmp_path.iterdir()) == []
        answers += [await tool("advise", ASKED | {"destination": "out.json"})]
        answers += [await tool("advise", ASKED | {"destination": "out.json", "gpus": "8x80GB"})]
        answers += [await tool("check", {"config_files": ["out.json", "out.json"]})]
        answers += [await tool("explain", {"model": "gpt2", "gpus": "24GB", "offline": True})]
        answers += [await tool("lint", {"config_files": ["none.json"]}), await tool("lint", {"nonsense": 1})]
        texts = [
            (await client.read_resource(f"ds-advise://{name}")).contents[0].text
            for name in ("manual/asking", "schema/explain")
        ]
        return answers, texts, (await client.list_tools()).tools, (await client.list_resources()).resources

    answers, (page, schema), tools, resources = with_client(tmp_path, task)
    longest, written, again, checked, explained, missing, unknown = answers
    assert run(["mcp", "--skill"]) == 0 and capsys.readouterr().out.startswith("---\nname: ds-advise\n")
    words = "advise Qwen2.5-14B --gpus 2x32GB --offline --no-deepspeed-estimate --no-write --json"
    assert run([*words.split(), "--seq-len", "max", "--lora-rank", "4", "--method", "lora"]) == 0
    assert longest.structured_content == json.loads(longest.content[0].text) == json.loads(capsys.readouterr().out)
    assert not written.is_error and [file.name for file in tmp_path.iterdir()] == ["out.json"]
    assert again.is_error and "out.json" in again.content[-1].text and "exists" in again.content[-1].text
    # Lint and fits of a file, which records its question; one that is named twice is checked once.
    assert [each["name"] for each in checked.structured_content["requirements"]] == ["lint", "fits"]
    assert missing.is_error and missing.content[0].text.startswith("ds-advise: ")
    assert unknown.is_error and "no argument 'nonsense'" in unknown.content[0].text

    by_name = {tool.name: tool for tool in tools}
    properties = by_name["advise"].input_schema["properties"]
    assert properties["method"]["enum"] == ["full", "lora", "qlora"] and properties["packing"]["type"] == "boolean"
    assert all(each["description"] for tool in tools for each in tool.input_schema["properties"].values())
    assert not {"force", "fix", "probe", "no_write"} & {
        name for tool in tools for name in tool.input_schema["properties"]
    }
    assert [name for name, tool in by_name.items() if tool.annotations.read_only_hint] == [
        *("explain", "lint", "check", "doctor")
    ]
    assert sum(len(tool.model_dump_json()) for tool in tools) < 60_000
    assert schema_errors(explained.structured_content, json.loads(schema)) == []
    assert page.startswith("# Options") and {"ds-advise://manual/agents"} < {each.uri for each in resources}
