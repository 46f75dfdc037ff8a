//! The plan of a run: the scenario as the generator sees it, already checked.

use std::str::FromStr;
use std::time::Duration;

use super::rate::Rate;
use super::schedule::Arrivals;
use super::template::{Mix, Template};
use weir::values::Tier;
use weir_client::Policy;

/// The plan of a whole run of the load generator.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Set-up commands, carried out one after the other before the load starts.
    pub setup: Vec<SetupPlan>,
    /// Groups of clients, which send at the same time.
    pub groups: Vec<GroupPlan>,
    /// The number of threads, over which connections and rates are spread evenly.
    pub threads: usize,
    /// The interval at which threads look for requests that have become due, and send them; a longer one
    /// makes larger batches.
    pub tick: Duration,
    /// The longest time, after the last request became due, in which late requests are still sent and
    /// replies are awaited.
    pub drain: Duration,
    /// The longest time that a connection attempt may take, and that the run waits for connections before it
    /// starts.
    pub connect_timeout: Duration,
    /// The longest time that the set-up commands may take.
    pub setup_timeout: Duration,
    /// The seed of all random choices; the same seed gives the same requests.
    pub seed: u64,
}

impl Plan {
    /// Returns the time over which requests become due: the duration of the group with the longest one.
    pub fn duration(&self) -> Duration {
        self.groups.iter().map(GroupPlan::duration).max().unwrap_or_default()
    }
}

/// A command that fills the store before the load.
#[derive(Clone, Debug)]
pub struct SetupPlan {
    /// The command that is sent to fill the store.
    pub command: Template,
    /// The number of times that the command is sent before the load; `{seq}` in it counts from 0.
    pub count: u64,
    /// The index of the group of clients on whose connections the command is sent.
    pub group: usize,
}

/// The behaviour of simulated clients when a request is refused or not answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClientKind {
    /// Clients that retry at once, whatever the reply said.
    #[default]
    Naive,
    /// Clients that use the client library [`weir_client`], which spares an overloaded target.
    Smart,
}

impl ClientKind {
    /// Returns the maximum number of retries of a request that clients of this kind make unless flags say
    /// otherwise: 0 for naive ones, the client library's default for smart ones.
    pub fn retries(self) -> u8 {
        match self {
            Self::Naive => 0,
            Self::Smart => Policy::default().retries,
        }
    }

    /// Returns the time after which clients of this kind give an attempt up unless flags say otherwise;
    /// `None` for never.
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
            _ => Err("naive or smart is expected"),
        }
    }
}

/// A group of clients that behave alike.
#[derive(Clone, Debug)]
pub struct GroupPlan {
    /// The name of the group of clients in reports.
    pub name: String,
    /// The tenant, user and other settings that each connection sends at its start.
    pub identity: Identity,
    /// The number of connections of the group, over all threads.
    pub connections: usize,
    /// Maximum number of requests in flight on each connection.
    pub pipeline: usize,
    /// The way in which the group's requests are spread over time.
    pub arrivals: Arrivals,
    /// The phases of the group's load (parts of its time with a rate and commands of their own), which
    /// follow each other.
    pub phases: Vec<PhasePlan>,
    /// The clients' behaviour when a request is refused or not answered.
    pub client: ClientKind,
    /// Maximum number of retries of a request: naive clients repeat requests that were refused, failed or
    /// timed out, smart ones only reads without a reply.
    pub retries: u8,
    /// The time after which an unanswered attempt at a request is given up; `None` for the default of the
    /// client kind (1 second for smart ones, never for naive ones).
    pub timeout: Option<Duration>,
}

impl GroupPlan {
    /// Returns the time over which requests of the group become due: the sum of its phases' durations.
    pub fn duration(&self) -> Duration {
        self.phases.iter().map(|phase| phase.duration).sum()
    }
}

/// A phase: a part of a group's time, with a rate and commands of its own.
#[derive(Clone, Debug)]
pub struct PhasePlan {
    /// The name of the phase (part of a group's time) in reports.
    pub name: String,
    /// The time that the phase lasts.
    pub duration: Duration,
    /// The number of requests per second during the phase, for all connections of the group on all threads
    /// together.
    pub rate: Rate,
    /// The commands that are sent during the phase; one is chosen at random by weight for each request.
    pub mix: Mix,
}

/// The settings that a connection sends to the target before its first request (AUTH, HELLO, QOS SET).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The tenant's name for AUTH; `None` to send only a password, or no AUTH.
    pub tenant: Option<String>,
    /// The password for AUTH; `None` to send only the tenant's name, or no AUTH.
    pub password: Option<String>,
    /// True if the connection switches to RESP3 with HELLO.
    pub resp3: bool,
    /// Names of users for `QOS SET USER`, one for each connection in turn; empty to name none.
    pub users: Vec<String>,
    /// The tier for `QOS SET TIER`; `None` to set none.
    pub tier: Option<Tier>,
    /// The deadline of each request, for `QOS SET DEADLINE`, in milliseconds rounded up; `None` to set none.
    pub deadline: Option<Duration>,
}

impl Identity {
    /// Sets the password of a tenant that has none yet.
    pub fn complete(&mut self, password: Option<&str>) {
        if self.tenant.is_some() && self.password.is_none() {
            self.password = password.map(str::to_owned);
        }
    }

    /// Returns the commands that the connection with this number sends before its first request (AUTH,
    /// HELLO, QOS SET), each as its words.
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
        let mut options = Vec::new();
        if !self.users.is_empty() {
            options.extend([word("USER"), self.users[connection % self.users.len()].clone()]);
        }
        if let Some(tier) = self.tier {
            options.extend([word("TIER"), tier.to_string()]);
        }
        if let Some(deadline) = self.deadline {
            options.extend([word("DEADLINE"), deadline.as_micros().div_ceil(1_000).to_string()]);
        }
        if !options.is_empty() {
            commands.push([word("QOS"), word("SET")].into_iter().chain(options).collect());
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

    #[test]
    fn tenants_without_a_password_get_the_common_one() {
        let completed = |tenant: Option<&str>, password: Option<&str>| {
            let [tenant, password] = [tenant, password].map(|text| text.map(str::to_owned));
            let mut identity = Identity { tenant, password, ..Identity::default() };
            identity.complete(Some("common"));
            identity.password
        };
        assert_eq!(completed(Some("acme"), None).as_deref(), Some("common"));
        assert_eq!(completed(Some("acme"), Some("own")).as_deref(), Some("own"));
        assert_eq!(completed(None, None), None, "the group is no tenant");
    }
}
