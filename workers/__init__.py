"""The cell types that ship."""
