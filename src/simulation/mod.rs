//! A fake world around the real composer: seeded, in virtual time.
