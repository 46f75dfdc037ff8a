//! Tests of the judge: hand-written histories, and random ones compared with the brute-force judge.

use std::time::Duration;

use weir::values::{Random, Timestamp};

use super::super::operation::{Act, Fate, Found, Operation, Token, Way};
use super::brute_force::is_possible;
use super::{Rules, Verdict, judge};

const STRICT: Rules = Rules { ttl: Duration::ZERO, slack: Duration::from_millis(1), stores_forget: false };
const NIL: Act = Act::Read(Found::Nil);

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn operation(session: u32, act: Act, asked: u64, answered: u64) -> Operation {
    Operation {
        asked: at(asked),
        answered: at(answered),
        session,
        number: 0,
        command: "X",
        act,
        fate: Fate::Done,
        way: Way::Plain,
    }
}

fn write(token: Token) -> Act {
    Act::Write { token, lives_ms: 0 }
}

fn read(token: Token) -> Act {
    Act::Read(Found::Value(token))
}

fn unknown(session: u32, act: Act, asked: u64) -> Operation {
    Operation { answered: Timestamp::MAX, fate: Fate::Unknown, ..operation(session, act, asked, 0) }
}

/// Gives the operations numbers in this order, as their places on their connections.
fn numbered(mut operations: Vec<Operation>) -> Vec<Operation> {
    for (number, operation) in operations.iter_mut().enumerate() {
        operation.number = number as u32;
    }
    operations
}

fn verdict(operations: &[Operation]) -> Verdict {
    judge(numbered(operations.to_vec()), &STRICT)
}

#[track_caller]
fn wrong(operations: &[Operation], said: &str) {
    let verdict = verdict(operations);
    assert!(verdict.violations > 0, "it was not noticed");
    assert!(verdict.explained.iter().any(|text| text.contains(said)), "{:#?}", verdict.explained);
}

#[track_caller]
fn right(operations: &[Operation]) {
    let verdict = verdict(operations);
    assert_eq!(verdict.violations, 0, "{:#?}", verdict.explained);
}

#[test]
fn a_stale_read_after_an_acknowledged_write() {
    let history =
        |asked| [operation(1, write(1), 0, 1), operation(1, write(2), 2, 4), operation(2, read(1), asked, 6)];
    right(&history(3));
    right(&history(4));
    wrong(&history(5), "no order of these is possible");
}

#[test]
fn reads_of_two_connections_that_go_backwards_though_the_write_is_still_under_way() {
    let history = |second_asked| {
        [
            operation(1, write(1), 0, 1),
            operation(1, write(2), 2, 20),
            operation(2, read(2), 4, 5),
            operation(3, read(1), second_asked, 9),
        ]
    };
    right(&history(5));
    wrong(&history(6), "is possible");
}

#[test]
fn reads_of_one_connection_that_go_backwards_within_one_pipeline() {
    let history = |session| {
        [
            operation(1, write(1), 0, 1),
            operation(2, write(2), 2, 20),
            operation(3, read(2), 3, 5),
            operation(session, read(1), 3, 5),
        ]
    };
    right(&history(4));
    wrong(&history(3), "sent by the same connection before");
}

#[test]
fn own_writes_within_one_pipeline() {
    let history = |session| {
        [operation(1, write(1), 0, 1), operation(2, write(2), 2, 5), operation(session, read(1), 2, 5)]
    };
    right(&history(3));
    wrong(&history(2), "sent by the same connection before");
    wrong(&[operation(1, read(1), 0, 5), operation(1, write(1), 0, 5)], "was sent behind it");
}

/// A script that does not declare its key may take effect before or after its neighbours in a pipeline, at
/// any time between request and reply.
#[test]
fn what_does_not_name_its_key_has_no_place_in_a_pipeline() {
    let hidden = |asked| Operation { way: Way::Unnamed, ..operation(2, write(2), asked, 5) };
    right(&[operation(1, write(1), 0, 1), hidden(2), operation(2, read(1), 2, 5)]);
    wrong(&[operation(1, write(1), 0, 1), hidden(2), operation(2, read(1), 6, 7)], "is possible");
}

#[test]
fn what_nobody_wrote() {
    wrong(&[operation(1, read(7), 0, 1)], "nobody wrote");
    wrong(&[operation(1, Act::Read(Found::Strange), 0, 1)], "nobody wrote");
    wrong(&[operation(1, read(1), 0, 1), operation(2, write(1), 2, 3)], "of a later write");
    let refused = Operation { fate: Fate::Never, ..operation(1, write(1), 0, 1) };
    right(&[refused, operation(2, NIL, 2, 3)]);
    wrong(&[refused, operation(2, read(1), 2, 3)], "refused unsent");
}

#[test]
fn an_unknown_write_happens_at_any_time_or_never() {
    let known = operation(1, write(1), 0, 1);
    right(&[known, unknown(2, write(2), 2), operation(3, read(1), 50, 60)]);
    right(&[known, unknown(2, write(2), 2), operation(3, read(1), 50, 60), operation(3, read(2), 70, 80)]);
    wrong(
        &[known, unknown(2, write(2), 2), operation(3, read(2), 50, 60), operation(3, read(1), 70, 80)],
        "is possible",
    );
    // An unknown delete explains a nil as well as any other, and proves nothing.
    right(&[known, unknown(2, Act::Delete, 2), operation(3, NIL, 50, 60)]);
    right(&[known, unknown(2, Act::Delete, 2), operation(3, read(1), 50, 60)]);
}

#[test]
fn nothing_needs_a_reason() {
    let value = operation(1, write(1), 2, 3);
    right(&[operation(2, NIL, 0, 1), value]);
    wrong(&[value, operation(2, NIL, 4, 5)], "for no reason");
    // The rule holds within a pipeline too, although the write is not acknowledged yet.
    right(&[value, operation(2, NIL, 2, 3)]);
    wrong(&[value, operation(1, NIL, 2, 3)], "for no reason");
    right(&[value, operation(2, Act::Delete, 4, 9), operation(3, NIL, 5, 6)]);
    wrong(&[operation(2, Act::Delete, 0, 1), value, operation(3, NIL, 5, 6)], "for no reason");
    wrong(&[value, operation(3, NIL, 5, 6), operation(2, Act::Delete, 7, 9)], "for no reason");
    // One unknown delete explains one stretch without a value, but not two.
    let one = [unknown(2, Act::Delete, 4), value, operation(3, NIL, 5, 6), operation(4, NIL, 9, 10)];
    right(&one);
    let back = [one.as_slice(), &[operation(1, write(2), 11, 12)]].concat();
    right(&back);
    wrong(&[back.as_slice(), &[operation(3, NIL, 13, 14)]].concat(), "for no reason");
    right(&[back.as_slice(), &[operation(3, NIL, 13, 14), unknown(5, Act::Delete, 7)]].concat());
    // The value is read again after a read that found none.
    wrong(
        &[value, operation(2, Act::Delete, 4, 20), operation(3, NIL, 5, 6), operation(4, read(1), 7, 8)],
        "is possible",
    );
}

#[test]
fn found_after_a_delete() {
    let (value, delete) = (operation(1, write(1), 0, 1), operation(2, Act::Delete, 2, 3));
    right(&[value, delete, operation(3, read(1), 3, 5)]);
    wrong(&[value, delete, operation(3, read(1), 4, 5)], "is possible");
}

#[test]
fn found_after_its_end() {
    let short = operation(1, Act::Write { token: 1, lives_ms: 10 }, 0, 2);
    right(&[short, operation(2, read(1), 13, 14)]);
    wrong(&[short, operation(2, read(1), 14, 15)], "was the end of it");
    right(&[short, operation(2, NIL, 8, 9)]);
    wrong(&[short, operation(2, NIL, 7, 8)], "for no reason");
    // The expiry was postponed, or may have been.
    let longer = operation(2, Act::Expire { token: Some(1), lives_ms: 20 }, 5, 6);
    right(&[short, longer, operation(3, read(1), 27, 28)]);
    wrong(&[short, longer, operation(3, read(1), 28, 29)], "was the end of it");
    right(&[short, unknown(2, Act::Expire { token: None, lives_ms: 20 }, 5), operation(3, read(1), 50, 51)]);
    right(&[
        operation(1, write(1), 0, 1),
        unknown(2, Act::Expire { token: None, lives_ms: 20 }, 5),
        operation(3, NIL, 25, 26),
    ]);
    // A value that a command has taken away is gone, even if its delete could still have come before the
    // write.
    let taken = Act::Take(Found::Value(1));
    let history =
        |asked| [operation(1, write(1), 0, 5), operation(2, taken, 1, 6), operation(3, read(1), asked, 9)];
    right(&history(6));
    wrong(&history(7), "was the end of it");
}

#[test]
fn stale_by_permission() {
    let rules = Rules { ttl: Duration::from_millis(100), ..STRICT };
    let history = |way: Way, asked| {
        vec![
            operation(1, write(1), 0, 1),
            Operation { way, ..operation(2, write(2), 10, 11) },
            operation(3, read(1), asked, asked + 1),
        ]
    };
    let violations = |operations: Vec<Operation>| judge(numbered(operations), &rules).violations;
    assert_eq!(violations(history(Way::Around, 111)), 0);
    assert_eq!(violations(history(Way::Around, 112)), 1);
    assert_eq!(violations(history(Way::Plain, 12)), 1, "through weir nothing is stale");
    // A stale nil is allowed in the same cases as a stale value.
    let nil = |way: Way, asked| {
        let written = Operation { way, ..operation(2, write(2), 10, 11) };
        vec![written, operation(3, NIL, asked, asked + 1)]
    };
    assert_eq!(violations(nil(Way::Around, 111)), 0);
    assert_eq!(violations(nil(Way::Around, 112)), 1);
    assert_eq!(violations(nil(Way::Plain, 12)), 1);
    // Reads by one command never go backwards on a connection; another command may still give an older
    // answer.
    for (command, expected) in [("X", 1), ("Y", 0)] {
        let mut operations = history(Way::Around, 30);
        operations.insert(2, Operation { command, ..operation(3, read(2), 20, 21) });
        assert_eq!(violations(operations), expected, "{command}");
    }
}

/// Compares the judge with brute force: each history that it rejects is impossible, and histories without
/// nils are judged exactly.
#[test]
fn it_agrees_with_every_order_tried() {
    let (mut possible, mut missed, mut impossible) = (0, 0, 0);
    for seed in 0..40_000 {
        let mut random = Random::new(seed);
        let operations = numbered(random_history(&mut random));
        let expected = is_possible(&operations);
        let found = judge(operations.clone(), &STRICT);
        if expected {
            possible += 1;
            assert_eq!(found.violations, 0, "seed {seed}: {operations:#?} {:#?}", found.explained);
            continue;
        }
        impossible += 1;
        if found.violations == 0 {
            let nils = operations.iter().filter(|operation| operation.act == NIL).count();
            assert!(nils > 0, "seed {seed} was not noticed: {operations:#?}");
            missed += 1;
        }
    }
    println!("{possible} possible, {impossible} not, {missed} of them missed");
    assert!(possible > 5_000 && impossible > 5_000, "{possible} and {impossible}");
    assert!(missed * 20 < impossible, "{missed} of {impossible} were missed");
}

/// Makes a history of a few close operations on few connections. Seven in ten histories come from a correct
/// register, and some of these are then spoilt.
fn random_history(random: &mut Random) -> Vec<Operation> {
    let count = random.between(2, 7);
    let (sessions, width) = (random.between(1, 4), random.between(1, 6));
    let is_real = random.per_mille(700);
    let (mut value, mut tokens) = (None, 0);
    let mut operations: Vec<Operation> = Vec::new();
    for step in 0..count {
        let instant = 2 * step + 10;
        let session = random.between(1, sessions) as u32;
        // A connection sends its operations in order, and gets their replies in order.
        let newest = operations.iter().rev().find(|former| former.session == session);
        let least = newest.map_or(0, |former| former.asked.as_nanos() / 1_000_000);
        let soonest = newest.filter(|former| former.answered < Timestamp::MAX);
        let soonest = soonest.map_or(0, |former| former.answered.as_nanos() / 1_000_000);
        let asked = (instant - random.below(width + 1)).max(least);
        let answered = (instant + random.below(width + 1)).max(soonest);
        let act = match random.below(10) {
            0..4 => {
                tokens += 1;
                write(tokens)
            }
            4 if random.per_mille(500) => Act::Delete,
            _ => {
                let chosen = if random.per_mille(850) { random.below(tokens + 1) } else { 0 };
                let found = if is_real { value.unwrap_or(0) } else { chosen };
                if found == 0 { NIL } else { read(found) }
            }
        };
        let is_unknown = matches!(act, Act::Write { .. } | Act::Delete) && random.per_mille(150);
        let happens = !is_unknown || random.per_mille(500);
        match act {
            Act::Write { token, .. } if happens => value = Some(token),
            Act::Delete if happens => value = None,
            _ => {}
        }
        let made = operation(session, act, asked, answered);
        let lost = unknown(session, act, asked);
        operations.push(if is_unknown { lost } else { made });
    }
    if is_real && random.per_mille(600) {
        let spoilt = random.index(operations.len());
        if let Act::Read(_) = operations[spoilt].act {
            let found = random.below(tokens + 1);
            operations[spoilt].act = if found == 0 { NIL } else { read(found) };
        }
    }
    operations
}
