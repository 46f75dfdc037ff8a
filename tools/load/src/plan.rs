//! What is to be done, checked: the scenario as the generator sees it.

use std::str::FromStr;
use std::time::Duration;

use super::rate::Rate;
use super::schedule::Arrivals;
use super::template::{Mix, Template};
use weir::values::Tier;
use weir_client::Policy;

/// A whole run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Carried out one after the other before the load starts.
    pub setup: Vec<SetupPlan>,
    /// All at once.
    pub groups: Vec<GroupPlan>,
    /// Threads that share the connections and rates.
    pub threads: usize,
    /// Requests that are due are sent this often; a longer pause makes larger batches.
    pub tick: Duration,
    /// How long replies are waited for after the last request was due.
    pub drain: Duration,
    /// How long a target may take to accept connections before a run without any is given up.
    pub connect_timeout: Duration,
    /// How long the set-up commands may take.
    pub setup_timeout: Duration,
    /// The same seed gives the same requests.
    pub seed: u64,
}

impl Plan {
    /// How long requests come.
    pub fn duration(&self) -> Duration {
        self.groups.iter().map(GroupPlan::duration).max().unwrap_or_default()
    }
}

/// Commands that fill the store.
#[derive(Clone, Debug)]
pub struct SetupPlan {
    /// What is sent.
    pub command: Template,
    /// How many times; `{seq}` counts from 0.
    pub count: u64,
    /// On whose connections: an index into the groups.
    pub group: usize,
}

/// What clients do when they are refused, or not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientKind {
    /// They repeat at once, whatever was said.
    #[default]
    Naive,
    /// Those of [`weir_client`].
    Smart,
}

impl ClientKind {
    /// How often a request is repeated unless the plan says otherwise.
    pub fn retries(self) -> u8 {
        match self {
            Self::Naive => 0,
            Self::Smart => Policy::default().retries,
        }
    }

    /// After how long it is given up unless the plan says otherwise.
    pub fn timeout(self) -> Option<Duration> {
        match self {
            Self::Naive => None,
            Self::Smart => Some(Policy::default().timeout),
        }
    }
}

impl FromStr for ClientKind {
    type Err = &'static str;

    fn from_str(word: &str) -> Result<Self, &'static str> {
        match word {
            "naive" => Ok(Self::Naive),
            "smart" => Ok(Self::Smart),
            _ => Err("naive or smart is wanted"),
        }
    }
}

/// Clients that behave alike.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// Its name in reports.
    pub name: String,
    /// Who they say they are.
    pub identity: Identity,
    /// Connections over all threads.
    pub connections: usize,
    /// Unanswered requests on each.
    pub pipeline: usize,
    /// How arrivals are spread.
    pub arrivals: Arrivals,
    /// One after the other.
    pub phases: Vec<PhasePlan>,
    /// What they do about refusals and silence.
    pub client: ClientKind,
    /// How often a request is repeated at most: by naive clients one that was refused, failed or timed out, by smart ones
    /// one that only reads and was not answered.
    pub retries: u8,
    /// After how long an unanswered request is given up.
    pub timeout: Option<Duration>,
}

impl GroupPlan {
    /// How long its requests come.
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|phase| phase.duration).sum()
    }
}

/// A part of a group's time.
#[derive(Clone, Debug)]
pub struct PhasePlan {
    /// Its name in reports.
    pub name: String,
    /// How long it lasts.
    pub duration: Duration,
    /// How many requests come.
    pub rate: Rate,
    /// Which ones.
    pub mix: Mix,
}

/// What a connection says first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// For AUTH.
    pub tenant: Option<String>,
    /// For AUTH.
    pub password: Option<String>,
    /// It speaks RESP3: for HELLO.
    pub resp3: bool,
    /// For QOS SET; connections take turns.
    pub users: Vec<String>,
    /// For QOS SET.
    pub tier: Option<Tier>,
    /// For QOS SET.
    pub deadline: Option<Duration>,
}

impl Identity {
    /// The greeting of the connection with this number: commands, each as its words.
    pub fn greeting(&self, connection: usize) -> Vec<Vec<String>> {
        let mut commands = Vec::new();
        let word = |text: &str| text.to_owned();
        if self.tenant.is_some() || self.password.is_some() {
            let words = [self.tenant.as_deref(), self.password.as_deref()];
            commands.push([word("AUTH")].into_iter().chain(words.into_iter().flatten().map(word)).collect());
        }
        if self.resp3 {
            commands.push(vec![word("HELLO"), word("3")]);
        }
        let mut wishes = Vec::new();
        if !self.users.is_empty() {
            wishes.extend([word("USER"), self.users[connection % self.users.len()].clone()]);
        }
        if let Some(tier) = self.tier {
            wishes.extend([word("TIER"), tier.to_string()]);
        }
        if let Some(deadline) = self.deadline {
            wishes.extend([word("DEADLINE"), deadline.as_millis().to_string()]);
        }
        if !wishes.is_empty() {
            commands.push([word("QOS"), word("SET")].into_iter().chain(wishes).collect());
        }
        commands
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings() {
        let identity = Identity {
            tenant: Some("acme".to_owned()),
            password: Some("secret".to_owned()),
            resp3: true,
            users: vec!["ann".to_owned(), "bob".to_owned()],
            tier: Some(Tier::Batch),
            deadline: Some(Duration::from_millis(50)),
        };
        let said: Vec<String> = identity.greeting(3).iter().map(|words| words.join(" ")).collect();
        assert_eq!(said, ["AUTH acme secret", "HELLO 3", "QOS SET USER bob TIER batch DEADLINE 50"]);
        assert!(Identity::default().greeting(0).is_empty());
        let password_only = Identity { password: Some("secret".to_owned()), ..Identity::default() };
        assert_eq!(password_only.greeting(0), [["AUTH", "secret"]]);
    }
}
