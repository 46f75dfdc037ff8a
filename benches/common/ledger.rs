//! Benchmark bodies for admission (charging a request's price to token buckets) and settlement (correcting that charge
//! when the reply is there) alone, given the values that the surrounding stages would pass in.

use std::hint::black_box;

use weir::config::Quotas;
use weir::policy::price::{Asked, Measured};
use weir::protocol::command::{Command, recognise};
use weir::protocol::{Argument, Arguments};
use weir::shard::{Accounts, AdmissionSettings, Bill, Charge, Decision, Payer, Scope, asked};
use weir::values::{Grant, Price, ShardId, TenantId, Timestamp, UNIT, Usage, Weights};

/// The number of users that take turns, so that the table of users has many entries.
const USERS: usize = 256;

/// The number of successive requests of one user before the next user's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    One,
    Sixteen,
}

/// The amount that all buckets have at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Enough for any benchmark.
    Full,
    /// Too little for any request; the pools (the parts of the quotas that no core holds) have reported that they have
    /// nothing either.
    Dry,
}

/// The accounts of one core with three kinds of limits: one for all requests, one for the tenant, and one for each of
/// its users, who take turns. Their requests are all the same GET.
pub struct Ledger {
    accounts: Accounts,
    weights: Weights,
    payers: Vec<Payer>,
    in_a_row: Row,
    turn: usize,
    now: Timestamp,
    command: &'static Command,
    frame: Vec<u8>,
    places: Vec<Argument>,
}

impl Ledger {
    pub fn new(quotas: &Quotas, level: Level, in_a_row: Row) -> Self {
        let settings = AdmissionSettings::default();
        let mut accounts = Accounts::new(ShardId(0), 1, &settings, quotas);
        let now = Timestamp::from_millis(1);
        let tenant = quotas.strangers().expect("there is a default tenant");
        let payers: Vec<Payer> = (0..USERS)
            .map(|number| {
                let user = accounts.user(quotas.tenant(tenant), &format!("user:{number}"));
                Payer::new(tenant, user, quotas.version())
            })
            .collect();
        let (frame, places) = get();
        let command = recognise(&Arguments::new(&frame, &places)).expect("GET is known");
        let mut ledger = Self {
            accounts,
            weights: settings.weights,
            payers,
            in_a_row,
            turn: 0,
            now,
            command,
            frame,
            places,
        };
        ledger.fill(tenant, level);
        ledger
    }

    /// Prices a GET of the next user and charges it to the three buckets that limit the user. Panics if it is refused.
    pub fn admit(&mut self) {
        let decision = self.decide();
        assert!(decision == Decision::Admitted, "there is enough in all buckets");
    }

    /// Prices a GET that the buckets cannot pay for. Panics if it is admitted.
    pub fn refuse(&mut self) {
        let decision = self.decide();
        assert!(matches!(decision, Decision::Refused { .. }), "no bucket has anything");
    }

    fn decide(&mut self) -> Decision {
        let payer = self.next_payer();
        let arguments = Arguments::new(&self.frame, &self.places);
        let quote = self.weights.quote(&asked(Some(self.command), black_box(&arguments)));
        let class = self.command.class;
        if let Some(tab) = self.accounts.tab_of(payer)
            && tab.take(self.weights.estimate(&quote, tab.expected(class)), class, self.now)
        {
            return Decision::Admitted;
        }
        let cost = self.weights.estimate(&quote, self.accounts.expected(payer, class));
        let decision = self.accounts.admit(payer, cost, self.now);
        if decision == Decision::Admitted {
            self.accounts.begin(payer, class);
        }
        decision
    }

    /// Settles the cost of a reply, which is alternately more and less than was taken for the request.
    pub fn settle(&mut self) {
        let payer = self.next_payer();
        let quote = self.weights.quote(&Asked { requests: 1, bytes_in: 40, ..Asked::default() });
        let bytes_out = if self.turn.is_multiple_of(2) { 70 } else { 700 };
        let measured = black_box(Measured { bytes_out, ..Measured::default() });
        let cost = self.weights.actual(&quote, &measured);
        let charge = Charge {
            taken: black_box(Price::new(UNIT + UNIT / 10)),
            quote,
            payer,
            class: self.command.class,
            is_unrefused: false,
        };
        match self.accounts.tab_of(payer) {
            Some(tab) => tab.settle(&charge, cost),
            None => self.accounts.settle(&charge, Bill::Cost { due: cost, unbilled: 0 }, self.now),
        }
    }

    fn next_payer(&mut self) -> Payer {
        self.turn += 1;
        let row = match self.in_a_row {
            Row::One => self.turn,
            Row::Sixteen => self.turn / 16,
        };
        self.payers[row % USERS]
    }

    /// Creates all buckets in the accounts by one request of each user, and then grants them the amount that `level`
    /// says.
    fn fill(&mut self, tenant: TenantId, level: Level) {
        let users: Vec<Scope> =
            self.payers.iter().filter_map(|payer| payer.user().map(Scope::User)).collect();
        assert_eq!(users.len(), USERS, "all of them have limits");
        for payer in &self.payers {
            let _ = self.accounts.admit(*payer, Price::new(UNIT), self.now);
        }
        // Traffic leaves usage that waits to be reported, so the accounts get some here.
        self.accounts.meter(tenant, Usage { admitted: UNIT, ..Usage::default() }, self.now);
        let (amount, dry_from) = match level {
            Level::Full => (1 << 60, None),
            Level::Dry => (0, Some(0)),
        };
        let grants: Vec<Grant> = [Scope::Global, Scope::Tenant(tenant)]
            .into_iter()
            .chain(users)
            .map(|scope| {
                let bucket = self.accounts.bucket(scope).expect("every scope is bounded");
                let holds = amount as u64;
                Grant {
                    bucket,
                    amount,
                    holds,
                    level: 0,
                    at: self.now,
                    share: 65_535,
                    part: weir::values::Part::WHOLE,
                    dry_from,
                }
            })
            .collect();
        self.accounts.handle_grants(&grants, self.now);
    }
}

/// Returns the frame of `GET key:000000012345`, and the places of its two words.
fn get() -> (Vec<u8>, Vec<Argument>) {
    let frame = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000012345\r\n".to_vec();
    let places = vec![Argument { start: 8, length: 3 }, Argument { start: 18, length: 16 }];
    (frame, places)
}
