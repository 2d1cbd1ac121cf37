"""What several test files share. Nothing in here is collected as a test; a test file never imports another one."""
