"""`tenure chat` with piped input, over a fake engine."""

from __future__ import annotations

import re

from tenure.testing.byte_tokenizer import ByteTokenizer

GREEDY = ("--temperature", "0", "--max-new-tokens", "8")


def expected(model, context):
    """The reply to a context of text, and its text."""
    ids = model.greedy(ByteTokenizer().encode(context, add_special=False), 8)
    return ids, ByteTokenizer().decode(ids, skip_special=True)


def turn_text(question, reply=None):
    """The ChatML text of a turn: after an earlier reply, which ended with EOS or was cut."""
    opening = "" if reply is None else f"{reply}\n"
    return f"{opening}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_each_turn_sends_what_is_new_and_sees_all(run, fake_model):
    ran = run("chat", *GREEDY, stdin="one\ntwo\n/quit\n")
    assert ran.status == 0
    cached = [list(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) prompt", ran.err)]
    (first_cached, first_prompt), (again_cached, again_prompt) = cached
    assert first_cached == 0
    assert first_prompt == len(ByteTokenizer().encode(turn_text("one"), add_special=False))
    assert again_prompt > first_prompt + len("two")
    assert again_cached >= first_prompt


def test_the_reply_is_the_models(run, fake_model):
    ran = run("chat", *GREEDY, stdin="one\n")
    _, text = expected(fake_model, turn_text("one"))
    assert ran.out == f"{text}\n"


def test_a_rewound_question_gets_the_same_answer(run, fake_model):
    ran = run("chat", *GREEDY, stdin="one\n/rewind\none\n")
    assert ran.err.count("prompt tokens cached") == 2
    assert "at the start" in ran.err
    half = len(ran.out) // 2
    assert ran.out[:half] == ran.out[half:]


def test_forks_show_in_the_tree(run, fake_model):
    ran = run("chat", *GREEDY, stdin="one\n/fork x\ntwo\n/goto main\nthree\n/turns\n")
    assert "on branch x" in ran.err
    lines = ran.out.splitlines()[-4:]
    assert lines[0].startswith("start")
    assert [re.search(r"\d \w+", line).group() for line in lines[1:]] == [
        "1 one",
        "2 two",
        "3 three",
    ]
    assert "<x>" in lines[2]
    assert "<main*>" in lines[3]


def test_new_starts_another_session(run, fake_model):
    ran = run("chat", *GREEDY, stdin="one\n/new\none\n/turns\n")
    assert "a new session" in ran.err
    assert sum(re.search(r"\d one", line) is not None for line in ran.out.splitlines()) == 1


def test_mistakes_are_told_and_do_not_end_the_chat(run, fake_model):
    ran = run("chat", *GREEDY, stdin="/nope\n/rewind x\n/rewind\n/goto y\n/help\n\none\n")
    assert ran.status == 0
    assert ran.err.count("error: ") == 4
    assert "/fork [name]" in ran.out
    assert "prompt tokens cached" in ran.err


def test_system_comes_first(run, fake_model):
    ran = run("chat", *GREEDY, "--system", "be brief", stdin="one\n")
    prompt = f"<|im_start|>system\nbe brief<|im_end|>\n{turn_text('one')}"
    n = len(ByteTokenizer().encode(prompt, add_special=False))
    assert f"0 of {n} prompt tokens cached" in ran.err


def test_a_template_that_rewrites_the_past_makes_each_turn_start_anew(run, forgetful_model):
    ran = run("chat", *GREEDY, stdin="one\nthree\n")
    assert [int(n) for n in re.findall(r"of (\d+) prompt", ran.err)] == [3, 5]
