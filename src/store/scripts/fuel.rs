//! The effort of a script (its instructions and the work of its libraries) in the engine's units, and its
//! time limit.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use super::errors::Raised;
use crate::values::Timestamp;
use crate::values::limits::ENGINE_SCRIPT_MS_MAX;

/// A clock for the run time of scripts.
pub(in crate::store) type Stopwatch = Rc<dyn Fn() -> Timestamp>;

/// The number of Lua instructions between two checks of a script's effort (steps of work). A single instruction may
/// take a tenth of a second if it compares long strings, or reads a number from one.
pub(super) const INSTRUCTIONS_PER_CHECK: u32 = 48;
/// The number of Lua instructions between two checks of a script that uses much memory, and so may have long strings.
pub(super) const INSTRUCTIONS_PER_CHECK_LARGE: u32 = 8;
/// The number of Lua instructions for one unit of effort (steps of work); each takes about 10 ns.
const INSTRUCTIONS_PER_UNIT: u32 = 8;
/// The units of effort (steps of work) of instructions after which the run time is checked, unless single
/// instructions may have taken long: then it is checked at each call of the interpreter's hook.
const UNITS_PER_HEED: u64 = 25;
/// The number of units of effort (steps of work) after which a script's run time is checked, if the hook of
/// the interpreter has not done so meanwhile because library functions did most of the work.
const TIMED_UNITS: u64 = 10_000;
/// The number of bytes that a library function reads or writes in a script for one unit of effort (steps of
/// work).
const BYTES_PER_UNIT: u64 = 64;
/// The number of characters that a pattern match compares for one unit of effort (steps of work).
const STEPS_PER_UNIT: u64 = 4;

/// The units of effort (steps of work) to start a script, besides its instructions.
const SCRIPT_UNITS: u64 = 160;
/// The units of effort (steps of work) for each table that a library function reads or makes in a script.
pub(super) const TABLE_UNITS: u64 = 16;

/// The reason for which the engine ends a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The script and its commands took more than this many units of effort (steps of work).
    Effort(u64),
    Memory,
    /// The script was ended by SCRIPT KILL or FUNCTION KILL.
    Killed,
    /// The script, or all scripts of one request together, ran for longer than this many milliseconds.
    Time(u64),
}

impl Ending {
    pub(super) fn text(self) -> String {
        match self {
            Self::Effort(units) => {
                format!(
                    "ERR the script would take more than {units} steps, about ten instructions each: do less at once"
                )
            }
            Self::Time(ms) => format!("ERR the script ran for longer than {ms} ms: do less at once"),
            Self::Killed => "ERR Script killed by user with SCRIPT KILL...".to_owned(),
            Self::Memory => "ERR not enough memory for the script".to_owned(),
        }
    }
}

/// The time between two calls of the function that answers other clients' requests while a script runs for
/// long.
const ATTENDED_EVERY: Duration = Duration::from_millis(1);

/// The function that answers other connections while a script runs, and the run time in milliseconds from
/// which on it is called.
pub(super) struct Attendance {
    /// A Lua function that answers other connections, and that may end the script by [`Fuel::end`].
    pub(super) attend: mlua::Function,
    pub(super) after_ms: u64,
}

/// The run time of all scripts of one request (a transaction may run many, and FUNCTION RESTORE the code of many
/// libraries), which is bounded because single instructions (comparisons of long strings) may take long.
#[derive(Default)]
pub(in crate::store) struct RunTime {
    /// The clock that bounds the run time; `None` without a time limit.
    stopwatch: Option<Stopwatch>,
    /// The time at which the first script of the present request began; `None` before that.
    began: Cell<Option<Timestamp>>,
}

impl RunTime {
    pub(in crate::store) fn new(stopwatch: Option<Stopwatch>) -> Self {
        Self { stopwatch, began: Cell::new(None) }
    }

    /// Begins a request, none of whose scripts has run yet.
    pub(in crate::store) fn begin_request(&self) {
        self.began.set(None);
    }

    /// Begins a script, and returns the present time; time 0 without a clock.
    fn begin_script(&self) -> Timestamp {
        let Some(now) = self.now() else { return Timestamp::ZERO };
        self.began.set(Some(self.began.get().unwrap_or(now)));
        now
    }

    /// Returns the reason why no further script of the request may begin: fewer units of effort (steps of
    /// work) are `left` than a start takes, or the request's scripts have run for too long. `None` if a
    /// script may begin. `most` is the limit for the whole request, which the error text names.
    pub(super) fn forbids_start(&self, left: u64, most: u64) -> Option<Ending> {
        if left < SCRIPT_UNITS {
            return Some(Ending::Effort(most));
        }
        self.now().filter(|now| self.is_over(*now)).map(|_| Ending::Time(ENGINE_SCRIPT_MS_MAX))
    }

    fn now(&self) -> Option<Timestamp> {
        self.stopwatch.as_ref().map(|stopwatch| stopwatch())
    }

    /// True if the scripts of the request have run for longer than they may at `now`.
    fn is_over(&self, now: Timestamp) -> bool {
        let began = self.began.get().unwrap_or(now);
        now.since(began) > Duration::from_millis(ENGINE_SCRIPT_MS_MAX)
    }
}

/// The effort (steps of work) that a script may still spend, and the effort that it has spent since the
/// engine last charged it to the request.
#[derive(Default)]
pub(super) struct Fuel {
    run_time: Rc<RunTime>,
    started: Cell<Timestamp>,
    most: Cell<u64>,
    left: Cell<u64>,
    spent: Cell<u64>,
    /// The units of effort (steps of work) spent by instructions and library functions since the run time was
    /// last checked.
    untimed: Cell<u64>,
    /// The units of effort (steps of work) of instructions since the interpreter's hook last checked the run
    /// time.
    unheeded: Cell<u64>,
    ended: Cell<Option<Ending>>,
    /// The function that answers other connections while a script runs; `None` between scripts.
    attendance: RefCell<Option<Attendance>>,
    /// The time at which the function that answers other connections is due to be called again.
    attended_next: Cell<Timestamp>,
}

impl Fuel {
    pub(super) fn new(run_time: Rc<RunTime>) -> Self {
        Self { run_time, ..Self::default() }
    }

    /// Starts a script that may spend `left` units of effort (steps of work). `most` is the limit for the
    /// whole request, which the error text names. An error if `left` is less than the start of a script
    /// takes, or if the request's scripts have run for too long.
    pub(super) fn start(&self, most: u64, left: u64) -> Result<(), mlua::Error> {
        self.most.set(most);
        self.left.set(left);
        self.spent.set(0);
        self.untimed.set(0);
        self.ended.set(None);
        self.started.set(self.run_time.begin_script());
        self.check_time()?;
        self.spend(SCRIPT_UNITS)
    }

    /// Sets the function that answers other connections while a script runs for a long time; `None` removes
    /// it.
    pub(super) fn attend_with(&self, attendance: Option<Attendance>) {
        let after_ms = attendance.as_ref().map_or(0, |attendance| attendance.after_ms);
        self.attended_next.set(self.started.get().after(Duration::from_millis(after_ms)));
        self.attendance.replace(attendance);
    }

    /// Returns the time since the script began, in milliseconds; 0 without a clock.
    pub(super) fn running_ms(&self) -> u64 {
        self.run_time.now().map_or(0, |now| now.since(self.started.get()).as_millis() as u64)
    }

    /// Sets the units of effort (steps of work) that the script has left, after a command that it called has
    /// spent some.
    pub(super) fn set_left(&self, left: u64) {
        self.left.set(left);
    }

    /// Returns the units of effort (steps of work) that the script has spent since the last call of this
    /// function.
    pub(super) fn take_spent(&self) -> u64 {
        self.spent.take()
    }

    /// Spends units of effort (steps of work) of the script; returns the error that ends the script if fewer
    /// are left, or if it has been ended already. Checks the run time of the script from time to time.
    pub(super) fn spend(&self, units: u64) -> Result<(), mlua::Error> {
        self.check()?;
        self.untimed.set(self.untimed.get().saturating_add(units));
        if self.untimed.get() >= TIMED_UNITS {
            self.check_time()?;
        }
        self.spent.set(self.spent.get().saturating_add(units));
        let Some(left) = self.left.get().checked_sub(units) else {
            self.left.set(0);
            return Err(self.end(Ending::Effort(self.most.get())));
        };
        self.left.set(left);
        Ok(())
    }

    /// Fails with the error that ends the script if the engine has ended it already, so that a script that
    /// caught this error cannot continue.
    pub(super) fn check(&self) -> Result<(), mlua::Error> {
        self.ended.get().map_or(Ok(()), |ending| Err(Raised::Ended(ending).into()))
    }

    /// Marks the script as ended for the reason `ending`, and returns the error that ends it.
    pub(super) fn end(&self, ending: Ending) -> mlua::Error {
        self.ended.set(Some(ending));
        Raised::Ended(ending).into()
    }

    /// Spends the effort (steps of work) of this many instructions since the last call. Checks the run time
    /// of the script, and answers other connections if that is due: every time if the instructions may have
    /// taken long (`may_be_long`), else from time to time. An error ends the script.
    pub(super) fn spend_instructions(&self, instructions: u32, may_be_long: bool) -> Result<(), mlua::Error> {
        let units = u64::from(instructions / INSTRUCTIONS_PER_UNIT);
        self.unheeded.set(self.unheeded.get() + units);
        if self.unheeded.get() >= UNITS_PER_HEED || may_be_long {
            self.unheeded.set(0);
            self.heed_time()?;
        }
        self.spend(units)
    }

    /// Checks the run time of the script, and answers other connections if that is due. An error ends the script.
    pub(super) fn heed_time(&self) -> Result<(), mlua::Error> {
        match self.check_time()? {
            Some(now) if now >= self.attended_next.get() => self.attend(now),
            _ => Ok(()),
        }
    }

    /// Fails with the error that ends the script if the scripts of the request have run for too long. Returns
    /// the present time; `None` without a clock.
    fn check_time(&self) -> Result<Option<Timestamp>, mlua::Error> {
        self.untimed.set(0);
        let Some(now) = self.run_time.now() else { return Ok(None) };
        if self.run_time.is_over(now) {
            return Err(self.end(Ending::Time(ENGINE_SCRIPT_MS_MAX)));
        }
        Ok(Some(now))
    }

    /// Lets other connections get answers, one of which may end the script (SCRIPT KILL); the error then ends
    /// the script. `now` is the present time.
    fn attend(&self, now: Timestamp) -> Result<(), mlua::Error> {
        self.attended_next.set(now.after(ATTENDED_EVERY));
        let attend = self.attendance.borrow().as_ref().map(|attendance| attendance.attend.clone());
        attend.map_or(Ok(()), |attend| attend.call(()))
    }

    /// Checks the run time of the script for every 16th string that the engine makes in it. The interpreter looks
    /// for an equal string among those of the same hash, which clients can make collide, so that a single string
    /// may take milliseconds. An error ends the script.
    pub(super) fn note_string(&self) -> Result<(), mlua::Error> {
        self.untimed.set(self.untimed.get() + TIMED_UNITS / 16);
        if self.untimed.get() >= TIMED_UNITS { self.check_time().map(|_| ()) } else { Ok(()) }
    }

    pub(super) fn spend_bytes(&self, bytes: usize) -> Result<(), mlua::Error> {
        self.spend(bytes as u64 / BYTES_PER_UNIT)
    }

    /// Returns the number of characters that the effort (steps of work) left to the script allows a pattern
    /// match to compare.
    pub(super) fn steps_left(&self) -> u64 {
        self.left.get().saturating_mul(STEPS_PER_UNIT)
    }

    pub(super) fn spend_steps(&self, steps: u64) -> Result<(), mlua::Error> {
        self.spend(steps.div_ceil(STEPS_PER_UNIT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_has_ended_goes_on_no_more() {
        let fuel = Fuel::default();
        fuel.start(1_000, 300 + SCRIPT_UNITS).expect("there is enough");
        fuel.spend(200).expect("there is enough");
        assert!(fuel.spend(200).is_err());
        fuel.set_left(1_000);
        assert!(fuel.spend(0).is_err());
        assert_eq!(fuel.take_spent(), 400 + SCRIPT_UNITS);
        assert!(fuel.start(1_000, SCRIPT_UNITS - 1).is_err());
        fuel.start(1_000, 1_000).expect("there is enough");
        fuel.spend_instructions(INSTRUCTIONS_PER_CHECK, true).expect("it starts anew");
    }

    #[test]
    fn the_work_of_library_functions_ends_in_time() {
        let now = Rc::new(Cell::new(Timestamp::default()));
        let clock = Rc::clone(&now);
        let fuel = Fuel::new(Rc::new(RunTime::new(Some(Rc::new(move || clock.get())))));
        fuel.start(u64::MAX, u64::MAX).expect("there is time");
        fuel.spend(TIMED_UNITS).expect("there is time");
        now.set(now.get().after(Duration::from_millis(ENGINE_SCRIPT_MS_MAX + 1)));
        let spent = (0..1_000).take_while(|_| fuel.spend(TIMED_UNITS / 10).is_ok());
        assert_eq!(spent.count(), 9);
        assert_eq!(fuel.ended.get(), Some(Ending::Time(ENGINE_SCRIPT_MS_MAX)));
        // Another script of the same request has no more time, but one of the next request has.
        assert!(fuel.start(u64::MAX, u64::MAX).is_err());
        fuel.run_time.begin_request();
        fuel.start(u64::MAX, u64::MAX).expect("there is time");
    }
}
