#!/usr/bin/env python3
"""Print the answers of a server, so that those of several ranks can be compared with one process's.

usage: LOWKEY_TEST_RANKS=N ranks_check.py PROGRAM

Prompts are longer than a stripe of rows, so that each rank holds some. A conversation continues, is
saved, restored and continued after a restart; one request has several answers, and one is left by
its client during the prefill. Then clients ask at the same time, whose answers are only counted,
because sums of larger batches are rounded differently. Exit status 1 if a request fails.
"""
import json
import socket
import sys
import threading

from serve_process import HOST, Server, raw_request

OPTIONS = ["-t", "1", "-c", "8192", "--kv", "f16", "--slice", "0"]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def long_text(number, n_word):
    return f"Text {number}: " + " ".join(f"word{number * i % 97}" for i in range(n_word))


def expect(reply, what):
    if reply.status != 200:
        sys.exit(f"FAILED: {what}: status {reply.status}: {reply.body[:300]}")
    return reply.json()


def talk(server, messages, text, what):
    messages.append({"role": "user", "content": text})
    reply = expect(server.post(CHAT, {"messages": messages, "max_tokens": 12, "temperature": 0,
                                      "ignore_eos": True, "logprobs": True}, 60), what)
    choice, usage = reply["choices"][0], reply["usage"]
    messages.append(choice["message"])
    print(json.dumps([what, choice["message"]["content"], usage["prompt_tokens"],
                      usage["prompt_tokens_details"]["cached_tokens"],
                      [round(token["logprob"], 2) for token in choice["logprobs"]["content"]]]))


def leave(server):
    """A client that leaves during the prefill."""
    body = json.dumps({"prompt": long_text(5, 1000), "max_tokens": 1}).encode()
    with socket.create_connection((HOST, server.port), timeout=10) as client:
        client.sendall(raw_request(COMPLETIONS, body))


def ask_at_once(server, n_client):
    replies = [None] * n_client

    def ask(i):
        replies[i] = server.post(COMPLETIONS, {"prompt": long_text(i, 40 + 60 * (i % 3)),
                                               "max_tokens": 20, "n": 1 + i % 2}, 60)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(n_client)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    answers = [choice for reply in replies for choice in expect(reply, "clients")["choices"]]
    print(json.dumps(["clients", len(answers)]))


def main():
    messages = []
    with Server(sys.argv[1], OPTIONS) as server:
        talk(server, messages, long_text(1, 200), "first")
        talk(server, messages, "Go on.", "second")
        slot = server.ask("GET", "/slots").json()["slots"][0]
        expect(server.post(f"/slots/{slot['id']}?action=save", {"filename": "one"}), "save")
        talk(server, messages, "And then?", "third")
        expect(server.post("/slots/9?action=restore", {"filename": "one"}), "restore")
        reply = expect(server.post(COMPLETIONS, {"prompt": long_text(2, 150), "max_tokens": 8,
                                                 "n": 3, "temperature": 0}, 60), "three answers")
        print(json.dumps(sorted(choice["text"] for choice in reply["choices"])))
        leave(server)
        ask_at_once(server, 6)
        _, status = server.stop()
        if status != 0:
            sys.exit(f"FAILED: status {status}: {server.messages()[-300:]}")
        server.start()
        talk(server, messages, "After the restart.", "fourth")


if __name__ == "__main__":
    main()
