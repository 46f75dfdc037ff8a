//! One core's share of everything: the stages of a request's life, composed.
