"""What is hidden in texts that others see; ``!`` stands for secrets."""

import html
import json
from itertools import product
from time import process_time
from timeit import timeit

from hypothesis import given, settings
from hypothesis import strategies as st

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.text.hiding import has_credentials, without_private
from kernels_bench_tools.text.words import words

SECRET = words("""
    HTTPS://!@h https://u:!/!@h https://u:!'!@h 'https://h?token=!' https://u:!@!@h https://me@x.org:!/!@h/a
    s3://K:!@b postgres://u:!@h/db https://u:!?&!;!@h https://:!@h https://a?b=https://u:!@h&pwd=!?!#jwt=!
""")
PLAIN = """
    https://github.com/a/b/tree/@scope/x https://index.example/p/x@1.0 http://h:8080/a/@x ssh://git@h/a.git@v1 https://[::1]:80/x@y
    git+ssh://git@github.com:a/b.git@v1 https://index.example/pypi/simple/ file:///srv/wheels/simple ['https://h:80','me@x']
"""
PARTS = words(
    """" ' ` \\ < > & ; # / é \x7f :// https://u: https:// ssh:// @h ?token= &key= /simple /basic/ :80"""
)
TEXT = st.lists(st.sampled_from([*PARTS, "\n"]) | st.text(max_size=4), max_size=12).map("".join)


def test_credentials_in_urls_of_any_scheme_are_hidden_and_other_urls_stay():
    assert [one for one in SECRET if "!" in without_private(one) + str(KbtError(one, "is wrong"))] == []
    assert (without_private(PLAIN), has_credentials(PLAIN)) == (PLAIN, False)


@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(TEXT)
def test_what_encodes_a_text_still_does_when_its_credentials_are_hidden(text):
    hidden = without_private(text)
    assert json.loads(without_private(json.dumps([text, 1], ensure_ascii=False).encode())) == [hidden, 1]
    assert json.loads(without_private(json.dumps([text, 1])))[1] == 1
    assert html.unescape(without_private(html.escape(text))) == hidden


def test_the_time_is_proportional_to_the_length():
    parts = words(r":// ?token /a & ; : @ ' #= /simple /home/ \u00e9 &amp;")
    repeated = ["https://u:", *(first + second for first, second in product(parts, ["", *parts]))]

    def seconds(size: int) -> float:
        texts = ["https://a/" + text * (size // len(text)) for text in repeated]
        return timeit(lambda: [*map(without_private, texts)], timer=process_time, number=1)

    assert seconds(40_000) < 3 * seconds(20_000) + 5
