"""Checks prefixring in front of two real vLLM engines. Usage: e2e_vllm.py DIR (see real-engine.sh)"""
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import anthropic
import openai

DIR = sys.argv[1]
ENGINES = {"vllm-a": 18501, "vllm-b": 18502}
DATA, ADMIN = 18500, 18503
URL = f"http://127.0.0.1:{DATA}"
logs = tempfile.mkdtemp(prefix="prefixring-e2e-vllm-")
procs = {}
passed = failed = 0

oai = openai.OpenAI(base_url=URL + "/v1", api_key="client-key", max_retries=0, timeout=120)
ant = anthropic.Anthropic(base_url=URL, api_key="client-key", max_retries=0, timeout=120)


def start(name, *args):
    log = open(f"{logs}/{name}.log", "a", encoding="utf-8")
    procs[name] = subprocess.Popen(args, stdout=log, stderr=log, start_new_session=True)


def start_engine(name, *flags):
    start(name, "scripts/real-engine.sh", "serve", DIR, str(ENGINES[name]), *flags)


def stop(name, sig=signal.SIGTERM):
    p = procs.pop(name)
    try:
        os.killpg(p.pid, sig)
    except ProcessLookupError:
        pass
    p.wait()


def get(port, path, timeout=10):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout) as r:
        return r.read().decode()


def until(what, f, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if f():
                return time.monotonic()
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {what}")


def metric(port, name):
    found = [float(v) for v in re.findall(rf"^{re.escape(name)}{{[^}}]*}} (\S+)", get(port, "/metrics"), re.M)]
    assert found, f"no metric {name}"
    return sum(found)


def fleet():
    return {n["name"]: n for n in json.loads(get(ADMIN, "/api/v1/fleet"))["nodes"]}


def policy(name, rules=150):
    return f"Policy of {name}. " + " ".join(
        f"Policy {i}: answer with facts about the order, the refund and the shipping policy." for i in range(rules)
    )


def body(system, user, **kw):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "tiny", "messages": messages, **{"max_tokens": 8, **kw}}


def chat(system, user, **kw):
    raw = oai.chat.completions.with_raw_response.create(**body(system, user, **kw), extra_headers={"X-Prefixring-Explain": "1"})
    return raw.parse(), raw.headers.get("x-prefixring-engine")


def case(f):
    global passed, failed
    began = time.monotonic()
    try:
        note = f() or ""
        passed += 1
        print(f"ok    {f.__name__} ({time.monotonic() - began:.1f} s) {note}", flush=True)
    except Exception as e:
        failed += 1
        print(f"FAIL  {f.__name__}: {type(e).__name__}: {e}", flush=True)


def one_prompt_goes_to_one_engine_and_is_warm():
    system, cached, nodes = policy("one"), [], set()
    for i in range(10):
        r, node = chat(system, f"question {i}")
        cached.append(r.usage.prompt_tokens_details.cached_tokens)
        nodes.add(node)
    assert len(nodes) == 1, nodes
    assert cached[0] == 0 and min(cached[1:]) > 3000, cached
    return f"engine {nodes.pop()}, cached tokens {cached}"


def many_prompts_use_both_engines():
    nodes = {chat(policy(f"spread {i}", 20), "hello")[1] for i in range(16)}
    assert nodes == set(ENGINES), nodes


def streams_have_no_unasked_usage_and_the_router_counts_them():
    before = json.loads(get(ADMIN, "/api/v1/fleet"))["totals"]["prompt_tokens"]
    chunks = list(oai.chat.completions.create(**body(policy("stream"), "hello", stream=True)))
    assert all(c.usage is None and c.choices for c in chunks), chunks
    assert chunks[-1].choices[0].finish_reason, chunks[-1]
    after = json.loads(get(ADMIN, "/api/v1/fleet"))["totals"]["prompt_tokens"]
    assert after - before > 3000, (before, after)


def responses_and_completions_work():
    args = dict(model="tiny", instructions=policy("responses"), input="hello", max_output_tokens=4)
    assert oai.responses.create(**args).id
    events = [e.type for e in oai.responses.create(stream=True, **args)]
    assert events[0] == "response.created" and events[-1] == "response.completed", events
    assert oai.completions.create(model="tiny", prompt=policy("completion"), max_tokens=4).usage.completion_tokens == 4


def messages_work_and_are_warm():
    def ask(q):
        return ant.messages.create(model="tiny", max_tokens=4, system=policy("messages"), messages=[{"role": "user", "content": q}])

    ask("first")
    usage = ask("second").usage
    assert usage.cache_read_input_tokens > 3000, usage
    with ant.messages.stream(model="tiny", max_tokens=4, system=policy("messages"), messages=[{"role": "user", "content": "x"}]) as s:
        assert s.get_final_message().stop_reason == "max_tokens"
    return f"cache_read_input_tokens {usage.cache_read_input_tokens}"


def the_same_text_through_both_protocols_shares_the_cache():
    system = policy("shared")
    chat(system, "first")
    usage = ant.messages.create(model="tiny", max_tokens=4, system=system, messages=[{"role": "user", "content": "second"}]).usage
    assert usage.cache_read_input_tokens > 3000, usage


def a_client_that_leaves_frees_the_engine_within_1_s():
    results = []
    for stream in (True, False):
        payload = json.dumps(body(policy("leave"), "hello", stream=stream, max_tokens=4000, ignore_eos=True)).encode()
        s = socket.create_connection(("127.0.0.1", DATA))
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(payload) + payload)
        until("running", lambda: sum(metric(p, "vllm:num_requests_running") for p in ENGINES.values()) == 1, 15)
        if stream:
            s.recv(4096)
        left = time.monotonic()
        s.close()
        freed = until("freed", lambda: sum(metric(p, "vllm:num_requests_running") for p in ENGINES.values()) == 0, 5) - left
        assert freed < 1.0, f"stream={stream}: freed after {freed:.2f} s"
        results.append(f"stream={stream} {freed:.2f} s")
    return ", ".join(results)


def errors_of_the_engine_arrive_untouched():
    for kw, kind, text in (({"max_tokens": 0}, openai.BadRequestError, "max_tokens"), ({"model": "nope"}, openai.NotFoundError, "nope")):
        try:
            oai.chat.completions.create(**body("short", "hi", **kw))
        except kind as e:
            assert text in str(e), e
        else:
            raise AssertionError(f"no error for {kw}")


def a_killed_engine_loses_no_request_that_had_not_begun():
    """Plain requests, so that nothing has reached the client when the engine dies."""
    ok, errors = [], []

    def client(k):
        for i in range(10):
            try:
                chat(policy(f"kill {k}", 40), f"question {i}", max_tokens=16)
                ok.append(1)
            except openai.OpenAIError as e:
                errors.append(f"{type(e).__name__}: {e}")

    threads = [threading.Thread(target=client, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    until("load", lambda: len(ok) >= 8, 60)
    stop("vllm-b", signal.SIGKILL)
    for t in threads:
        t.join()
    assert not errors, errors[:3]
    return f"{len(ok)} answered, 0 lost"


def a_restarted_engine_comes_back():
    start_engine("vllm-b")
    until("vllm-b ready", lambda: fleet()["vllm-b"]["state"] == "ready", 150)
    many_prompts_use_both_engines()


def occupy(port, n):
    """n streams straight to an engine that go on until their sockets are closed."""
    held = []
    for i in range(n):
        payload = json.dumps(body("count", f"from {i}", stream=True, max_tokens=20000, ignore_eos=True)).encode()
        s = socket.create_connection(("127.0.0.1", port))
        s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(payload) + payload)
        held.append(s)
    return held


def a_saturated_engine_is_spared_within_2_s_and_used_again():
    """vllm-b runs 4 requests at a time; its load comes past the router, which can know it from the engine's metrics only."""
    stop("vllm-b")
    start_engine("vllm-b", "--max-num-seqs", "4")
    until("vllm-b is away", lambda: fleet()["vllm-b"]["takes"] == "closed", 20)
    until("vllm-b open", lambda: fleet()["vllm-b"]["takes"] == "open", 150)
    owned = next(p for p in (policy(f"owned {i}", 20) for i in range(40)) if chat(p, "hello")[1] == "vllm-b")
    assert chat(owned, "hello again")[1] == "vllm-b"
    held = occupy(ENGINES["vllm-b"], 44)
    try:
        began = until("a queue at vllm-b", lambda: metric(ENGINES["vllm-b"], "vllm:num_requests_waiting") >= 32, 20)
        spared = until("vllm-b spared", lambda: fleet()["vllm-b"]["takes"] == "closed", 5) - began
        seen = fleet()["vllm-b"]
        assert spared <= 2, f"spared after {spared:.2f} s"
        nodes = {chat(policy(f"while full {i}", 20), "hello")[1] for i in range(10)} | {chat(owned, "hello once more")[1]}
        assert nodes == {"vllm-a"}, nodes
    finally:
        for s in held:
            s.close()
    began = until("vllm-b works its queue off", lambda: metric(ENGINES["vllm-b"], "vllm:num_requests_waiting") == 0, 20)
    again = until("vllm-b open", lambda: fleet()["vllm-b"]["takes"] == "open", 15) - began
    assert chat(owned, "are you back?")[1] == "vllm-b"
    return f"{seen['state']} ({seen['reason']}, KV {seen['kv_usage']:.2f}), spared after {spared:.1f} s, open again {again:.1f} s after its queue was empty"


def versions():
    v = json.loads(get(ENGINES["vllm-a"], "/version"))["version"]
    return f"vLLM {v} (CPU), openai {openai.__version__}, anthropic {anthropic.__version__}, Python {platform.python_version()}"


def main():
    for name in ENGINES:
        start_engine(name)
    args = [f"--engine=http://127.0.0.1:{port},name={name}" for name, port in ENGINES.items()]
    start("serve", "bin/prefixring", "serve", f"--listen=127.0.0.1:{DATA}", f"--admin=127.0.0.1:{ADMIN}", *args)
    until("both engines ready", lambda: [n["state"] for n in fleet().values()] == ["ready", "ready"], 240)
    print(time.strftime("%Y-%m-%d"), versions(), flush=True)
    for f in (
        one_prompt_goes_to_one_engine_and_is_warm, many_prompts_use_both_engines,
        streams_have_no_unasked_usage_and_the_router_counts_them, responses_and_completions_work, messages_work_and_are_warm,
        the_same_text_through_both_protocols_shares_the_cache, a_client_that_leaves_frees_the_engine_within_1_s,
        errors_of_the_engine_arrive_untouched, a_killed_engine_loses_no_request_that_had_not_begun, a_restarted_engine_comes_back,
        a_saturated_engine_is_spared_within_2_s_and_used_again,
    ):
        case(f)


try:
    main()
finally:
    for name in list(procs):
        stop(name, signal.SIGKILL if name != "serve" else signal.SIGINT)
print(f"{passed} passed, {failed} failed" + (f"; logs in {logs}" if failed else ""))
sys.exit(1 if failed or not passed else 0)
