"""Chat, tools, streams, Responses, Messages and errors through the official clients. Usage: e2e_clients.py URL MODEL"""
import sys

import anthropic
import openai

URL, MODEL = sys.argv[1], sys.argv[2]
TOOLS = "--no-tools" not in sys.argv
oai = openai.OpenAI(base_url=URL + "/v1", api_key="client-key", max_retries=0)
ant = anthropic.Anthropic(base_url=URL, api_key="client-key", max_retries=0)
passed = failed = 0


def fat(name):
    return f"Rule of {name}: answer with facts about the order. " * 330


def case(f):
    global passed, failed
    try:
        f()
        passed += 1
        print(f"ok    {f.__name__}")
    except Exception as e:  # each case is told apart from the others
        failed += 1
        print(f"FAIL  {f.__name__}: {type(e).__name__}: {e}")


def chat(system, user, **kw):
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return oai.chat.completions.create(model=MODEL, messages=messages, **{"max_tokens": 8, **kw})


def chat_is_warm_the_second_time():
    chat(fat("py chat"), "first question")
    usage = chat(fat("py chat"), "another question").usage
    assert usage.prompt_tokens_details.cached_tokens > 3000, usage


def chat_streams():
    chunks = list(chat(fat("py stream"), "hello", stream=True))
    assert sum(bool(c.choices[0].delta.content) for c in chunks) >= 2, chunks
    assert chunks[-1].choices[0].finish_reason == "length", chunks[-1]
    assert all(c.usage is None for c in chunks), "usage that nobody asked for"


def chat_streams_usage_on_request():
    chunks = list(chat(fat("py usage"), "hello", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 8, chunks[-1]


def completions():
    r = oai.completions.create(model=MODEL, prompt=fat("py completions"), max_tokens=8)
    assert r.choices[0].text and r.usage.completion_tokens == 8, r


def chat_calls_tools():
    tool = {"type": "function", "function": {"name": "get_order", "parameters": {"type": "object", "properties": {}}}}
    r = chat(fat("py tools"), "use tool please", tools=[tool], max_tokens=64)
    assert r.choices[0].message.tool_calls[0].function.name == "get_order", r


def responses_plain_and_streamed():
    args = dict(model=MODEL, instructions=fat("py responses"), input="hello", max_output_tokens=8)
    assert oai.responses.create(**args).output_text
    events = [e.type for e in oai.responses.create(stream=True, **args)]
    assert events[0] == "response.created" and events[-1] == "response.completed", events


def messages_are_warm_the_second_time():
    def ask(q):
        return ant.messages.create(model=MODEL, max_tokens=8, system=fat("py messages"), messages=[{"role": "user", "content": q}])

    ask("first question")
    usage = ask("another question").usage
    assert usage.cache_read_input_tokens > 3000, usage


def messages_stream():
    with ant.messages.stream(model=MODEL, max_tokens=8, system=fat("py mstream"), messages=[{"role": "user", "content": "hi"}]) as s:
        text = "".join(s.text_stream)
    assert text and s.get_final_message().stop_reason == "max_tokens"


def models_are_listed():
    assert [m.id for m in oai.models.list()] == [MODEL]


def unknown_model_is_404_in_both_shapes():
    for f, kind in (
        (lambda: oai.chat.completions.create(model="nope", messages=[]), openai.NotFoundError),
        (lambda: ant.messages.create(model="nope", max_tokens=8, messages=[{"role": "user", "content": "x"}]), anthropic.NotFoundError),
    ):
        try:
            f()
        except kind:
            continue
        raise AssertionError("no error")


def engine_errors_arrive_untouched():
    try:
        chat("short", "hi", max_tokens=0)
    except openai.BadRequestError as e:
        assert "max_tokens" in str(e), e
    else:
        raise AssertionError("no error")


for f in (
    chat_is_warm_the_second_time, chat_streams, chat_streams_usage_on_request, completions, responses_plain_and_streamed,
    messages_are_warm_the_second_time, messages_stream, models_are_listed, unknown_model_is_404_in_both_shapes,
    engine_errors_arrive_untouched,
):
    case(f)
if TOOLS:
    case(chat_calls_tools)
print(f"{passed} passed, {failed} failed")
sys.exit(1 if failed else 0)
