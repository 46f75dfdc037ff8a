//! The options that a client may set for its requests (user, tier, deadline): for all of them, or for one.

use std::time::Duration;

use super::identity::{Chosen, Identity};
use crate::config::Tier;
use crate::config::quotas::user_name;
use crate::protocol::Arguments;
use crate::protocol::call::CallOption;
use crate::protocol::command::quoted;
use crate::shard::admission::AdmissionStage;
use crate::shard::env::Env;
use crate::shard::request::Overdue;
use crate::values::limits::{DEADLINE_MS_MAX, OPTIONS_MAX, USER_NAME_BYTES_MAX};

/// The options that a client sets for its requests. An option that is None stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    user: Option<String>,
    tier: Option<Tier>,
    deadline: Option<Duration>,
    overdue: Option<Overdue>,
}

impl RequestOptions {
    /// Parses one option with its value. False if the word is not an option; an error, as the text of the
    /// reply, if its value is invalid.
    fn take(&mut self, option: &[u8], value: &[u8]) -> Result<bool, String> {
        let text = quoted(value);
        let Some(option) = CallOption::of(option) else { return Ok(false) };
        match option {
            CallOption::User => {
                let Some(name) = user_name(value) else {
                    return Err(format!(
                        "ERR QOS USER '{text}': a name of 1 to {USER_NAME_BYTES_MAX} bytes without spaces or '/' is expected"
                    ));
                };
                self.user = Some(name.to_owned());
            }
            CallOption::Tier => {
                self.tier = Some(text.to_lowercase().parse().map_err(|_| {
                    format!("ERR QOS TIER '{text}': critical, standard, batch or sheddable is expected")
                })?);
            }
            CallOption::Deadline => {
                let millis = text.strip_suffix("ms").unwrap_or(&text).parse::<u64>().ok();
                let Some(millis) = millis.filter(|millis| (1..=DEADLINE_MS_MAX).contains(millis)) else {
                    return Err(format!(
                        "ERR QOS DEADLINE '{text}': whole milliseconds from 1 to {DEADLINE_MS_MAX} are expected"
                    ));
                };
                self.deadline = Some(Duration::from_millis(millis));
            }
            CallOption::InFlight => {
                self.overdue = Some(match () {
                    () if text.eq_ignore_ascii_case("answer") => Overdue::Answered,
                    () if text.eq_ignore_ascii_case("wait") => Overdue::Awaited,
                    () => return Err(format!("ERR QOS INFLIGHT '{text}': wait or answer is expected")),
                });
            }
        }
        Ok(true)
    }

    /// Parses the options after the `;` in a client's name, such as `tier=batch;deadline=50ms`. The error is
    /// the text of the reply.
    pub fn from_name(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for pair in text.split(';').filter(|pair| !pair.is_empty()) {
            let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !options.take(option.as_bytes(), value.as_bytes())? {
                return Err(format!(
                    "ERR client name option '{}': user=, tier= or deadline= is expected",
                    quoted(option.as_bytes())
                ));
            }
        }
        Ok(options)
    }

    /// Parses a list of words in which each option is followed by its value; a pair that begins with no option
    /// is passed over. The error is the text of the reply: an option's value is invalid.
    pub fn from_pairs(words: &[Vec<u8>]) -> Result<Self, String> {
        let mut options = Self::default();
        for pair in words.chunks_exact(2) {
            options.take(&pair[0], &pair[1])?;
        }
        Ok(options)
    }

    /// Parses options among a request's words, from index `from` to the first word that is not an option.
    /// Returns them with the index of that word. The error is the text of the reply: an invalid option, or
    /// more than 16 options.
    pub fn from_words(arguments: &Arguments<'_>, from: usize) -> Result<(Self, usize), String> {
        let mut options = Self::default();
        let mut at = from;
        while let (Some(option), Some(value)) = (arguments.get(at), arguments.get(at + 1)) {
            if !options.take(option, value)? {
                break;
            }
            at += 2;
            if at - from > 2 * OPTIONS_MAX {
                return Err(format!("ERR QOS: at most {OPTIONS_MAX} options are expected"));
            }
        }
        Ok((options, at))
    }
}

impl Identity {
    /// Returns this identity with a client's options applied, or unchanged before the client has logged in. The
    /// tier (importance) can be lowered below that of the tenant or user, never raised above it: a higher one is
    /// an error, whose text is the reply.
    pub fn with_options(
        &self,
        env: &Env,
        admission: &mut AdmissionStage,
        options: &RequestOptions,
    ) -> Result<Self, String> {
        let Some(tenant) = self.tenant else { return Ok(self.clone()) };
        let terms = env.quotas.tenant(tenant);
        let user = options.user.as_deref().map(Into::into).or_else(|| self.user.clone());
        let highest = terms.tier_of(user.as_deref());
        if let Some(tier) = options.tier.filter(|tier| *tier < highest) {
            let whose = if highest == terms.tier { "tenant" } else { "user" };
            return Err(format!("ERR QOS TIER '{tier}': above '{highest}', which is this {whose}'s"));
        }
        let account = user.as_deref().and_then(|user| admission.account_of(terms, user));
        let chosen = Chosen {
            tier: options.tier.or(self.chosen.tier),
            deadline: options.deadline.or(self.chosen.deadline),
            overdue: options.overdue.unwrap_or(self.chosen.overdue),
        };
        let identity = Self::of(&env.quotas, tenant, user, account, chosen);
        Ok(Self { is_proven: self.is_proven, ..identity })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_behind_a_name() {
        let options = RequestOptions::from_name("tier=batch;deadline=50ms").expect("well formed");
        assert_eq!((options.tier, options.deadline), (Some(Tier::Batch), Some(Duration::from_millis(50))));
        assert!(RequestOptions::from_name("colour=red").expect_err("unknown").contains("tier="));
        assert!(RequestOptions::from_name("tier=urgent").expect_err("unknown").contains("sheddable"));
        assert!(RequestOptions::from_name("deadline=0").expect_err("zero").contains("from 1"));
    }
}
