"""Whether two servers said the same."""


def assert_same(found, reference):
    """Greedy text must be the reference's, up to where that one isn't sure: between two tokens that are nearly as likely the
    shape of a batch may decide."""
    for token, logprob, wanted, best in zip(found["tokens"], found["token_logprobs"], reference["tokens"],
                                            reference["top_logprobs"], strict=True):
        assert token in best, (found["tokens"], reference)
        assert abs(logprob - best[token]) < 0.4, (found["tokens"], reference)
        if token != wanted:
            assert best[wanted] - best[token] < 0.5, (found["tokens"], reference)
            break
