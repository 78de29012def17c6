"""The tool loop: handlers of the `code` cells that join a round of parallel tool calls.

They are pure, and know a question only by what its envelope and its rows in the store say. The
edges of the tree count rounds, bound them and lead from cell to cell (store-backed tool loop).
"""
