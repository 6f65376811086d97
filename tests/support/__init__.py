"""What several tests share: small models, made-up data, readers and writers of files."""
