"""What tests of colonies are made of: servers, harness, recording host."""
