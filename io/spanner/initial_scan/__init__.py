"""The initial scan: tables at one timestamp, and the change stream that continues them. All modules are internal.

`frontier` holds the remaining work as one pure value, `plan` chooses tables, columns and key ranges, `rows` turns the
answers of the service into records, `prefetch` reads ahead, `client` talks to the service, `read` and `table` are the
transforms' DoFns.
"""
