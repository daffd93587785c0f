"""Where a score comes from: what each token of the context, each code, each token of the reply and each word adds."""
