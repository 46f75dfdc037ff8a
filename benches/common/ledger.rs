//! Admission and settlement alone, with what the stages around them would hand over.

use std::hint::black_box;

use weir::config::Quotas;
use weir::policy::price::{Asked, Measured};
use weir::protocol::command::{Command, recognise};
use weir::protocol::{Argument, Arguments};
use weir::shard::{Accounts, AdmissionSettings, Charge, Decision, Payer, Scope, asked};
use weir::values::{Grant, MicroUnits, ShardId, TenantId, Timestamp, UNIT, Weights};

/// Users that take turns, so that their table is one with many entries.
const USERS: usize = 256;

/// The accounts of one core: a limit for everybody, one for the tenant and one for each of its users.
pub struct Ledger {
    accounts: Accounts,
    weights: Weights,
    payers: Vec<Payer>,
    turn: usize,
    now: Timestamp,
    command: &'static Command,
    frame: Vec<u8>,
    places: Vec<Argument>,
}

impl Ledger {
    /// With more in all buckets than a benchmark takes.
    pub fn new(quotas: &Quotas) -> Self {
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
        let mut ledger =
            Self { accounts, weights: settings.weights, payers, turn: 0, now, command, frame, places };
        ledger.fill(tenant);
        ledger
    }

    /// Prices a GET, and takes its price from three buckets.
    pub fn admit(&mut self) {
        let payer = self.next_payer();
        let arguments = Arguments::new(&self.frame, &self.places);
        let asked = asked(Some(self.command), black_box(&arguments), &self.weights);
        let cost = self.estimate(payer, &asked);
        let decision = self.accounts.admit(payer, cost, self.now);
        assert!(decision == Decision::Admitted, "there is enough in all buckets");
    }

    /// Books what a reply cost, which is now more and now less than was taken for it.
    pub fn settle(&mut self) {
        let payer = self.next_payer();
        let quote = self.weights.quote(&Asked { requests: 1, bytes_in: 40, keys: 0, floor: 0 });
        let bytes_out = if self.turn.is_multiple_of(2) { 70 } else { 700 };
        let measured = black_box(Measured { bytes_out, ..Measured::default() });
        let cost = self.weights.actual(&quote, &measured);
        let charge = Charge { taken: black_box(UNIT + UNIT / 10), quote, payer, class: self.command.class };
        self.accounts.settle(&charge, Some(cost), self.now);
    }

    fn estimate(&self, payer: Payer, asked: &Asked) -> MicroUnits {
        let expected = self.accounts.expected(payer.tenant, self.command.class as usize);
        self.weights.estimate(&self.weights.quote(asked), expected)
    }

    fn next_payer(&mut self) -> Payer {
        self.turn += 1;
        self.payers[self.turn % USERS]
    }

    /// Every bucket is asked once, which makes it known, and then given an allowance that lasts.
    fn fill(&mut self, tenant: TenantId) {
        let users: Vec<Scope> = self.payers.iter().filter_map(|payer| payer.user.map(Scope::User)).collect();
        assert_eq!(users.len(), USERS, "all of them have limits");
        for payer in &self.payers {
            let _ = self.accounts.admit(*payer, UNIT, self.now);
        }
        let grants: Vec<Grant> = [Scope::Global, Scope::Tenant(tenant)]
            .into_iter()
            .chain(users)
            .map(|scope| {
                let bucket = self.accounts.bucket(scope).expect("every scope is bounded");
                Grant {
                    bucket,
                    amount: 1 << 60,
                    holds: 1 << 60,
                    level: 0,
                    at: self.now,
                    share: 65_535,
                    dry_from: None,
                }
            })
            .collect();
        self.accounts.handle_grants(&grants, self.now);
    }
}

/// `GET key:000000012345`.
fn get() -> (Vec<u8>, Vec<Argument>) {
    let frame = b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000012345\r\n".to_vec();
    let places = vec![Argument { start: 8, length: 3 }, Argument { start: 18, length: 16 }];
    (frame, places)
}
