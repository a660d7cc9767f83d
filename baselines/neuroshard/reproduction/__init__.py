"""The paper's tables and claims: studies and their conditions."""
