"""aiohttp, which reads the environment with `trust_env=True` only; at the gateway there is no proxy in it to read."""

import asyncio
import os

import aiohttp

from steps import ORIGIN, PAYLOAD, SERIES, pieces, report


async def parts():
    for piece in pieces():
        yield piece


async def main():
    async with aiohttp.ClientSession(trust_env="https_proxy" in os.environ, timeout=aiohttp.ClientTimeout(20)) as session:

        async def step(name, method, path, **options):
            async with session.request(method, ORIGIN + path, **options) as answer:
                report(name, answer.status, await answer.read())

        await step("get", "GET", "/get")
        await step("post", "POST", "/echo", data=PAYLOAD)
        await step("chunked", "POST", "/echo", data=parts())
        await step("head", "HEAD", "/head")
        await step("redirect", "GET", "/redirect")
        await step("gzip", "GET", "/gzip")
        await step("missing", "GET", "/missing")
        await step("stream", "GET", "/stream")
        for number in range(SERIES):
            await step("series", "GET", f"/series/{number}")


asyncio.run(main())
