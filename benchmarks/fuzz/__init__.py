"""Bad input at volume: what to send, how to send it, and what an answer must be (see benchmarks/fuzz_http.py)."""
