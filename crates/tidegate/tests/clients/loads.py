# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Asks for a URL many times with Python requests; prints what came of it, one word a line."""
import collections
import sys

import requests

url, times = sys.argv[1], int(sys.argv[2])
session = requests.Session()
found = collections.Counter()
for _ in range(times):
    try:
        answer = session.get(url, timeout=30)
        clean = answer.status_code != 503 or int(answer.headers["Retry-After"]) >= 1
        found[str(answer.status_code) if clean and answer.content else "unclean"] += 1
    except requests.exceptions.Timeout:
        found["timeout"] += 1
    except requests.exceptions.ConnectionError as error:
        found["reset" if "reset" in str(error).lower() else "error"] += 1
for word, count in found.items():
    print(word, count)
