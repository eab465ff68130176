"""
What a request came to, read from its response, or judged without one. There is no I/O here.

- :mod:`~.responses.statuses`: what each status means, such as 409
- :mod:`~.responses.results`: the run that a trigger started, and the response to an upload
- :mod:`~.responses.no_response`: the request that got no response, or one that cannot be read
- :mod:`~.responses.body`, :mod:`~.responses.retry_after`: what a response contains
- :mod:`~.responses.cause`: why a connection failed, and what to do about it
"""
