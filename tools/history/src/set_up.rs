//! Preparation of a run: empties the keys, and finds out which stores they are on.

use std::io;
use std::net::SocketAddr;

use weir::protocol::reply;
use weir::routing::slot_of;

use super::keys::Key;
use super::line::Line;

/// Maximum number of hash tags that are tried to find one whose keys are on the same store as a given key,
/// but in another slot; with few stores a few suffice.
const TAGS_TRIED: usize = 64;
/// The least distance between two slots that are to be handled by different cores of weir, if it has enough
/// cores: each core handles ranges of slots.
const SLOTS_APART: u16 = 2_048;

pub fn set_up(keys: &mut [Key], address: SocketAddr, around: &[SocketAddr]) -> io::Result<()> {
    let mut line = Line::open(address)?;
    for key in keys.iter_mut() {
        line.ask_firmly(&["DEL", &key.name])?;
        find_near_tag(&mut line, key)?;
    }
    if !around.is_empty() {
        find_stores(&mut line, keys, around)?;
    }
    Ok(())
}

fn find_near_tag(line: &mut Line, key: &mut Key) -> io::Result<()> {
    for tried in 0..TAGS_TRIED {
        let tag = format!("historynear{tried}");
        let name = format!("{{{tag}}}");
        if slot_of(name.as_bytes()).abs_diff(key.slot()) < SLOTS_APART {
            continue;
        }
        let reply = line.ask(&["EVAL", "return 1", "2", &key.name, &name])?;
        if reply::integer(&reply) == Some(1) {
            key.near_tag = tag;
            return Ok(());
        }
    }
    Ok(())
}

fn find_stores(line: &mut Line, keys: &mut [Key], around: &[SocketAddr]) -> io::Result<()> {
    let mut lines = around.iter().map(|address| Line::open(*address)).collect::<io::Result<Vec<_>>>()?;
    for key in keys.iter_mut() {
        line.ask_firmly(&["SET", &key.name, "where"])?;
        for (store, direct) in lines.iter_mut().enumerate() {
            if reply::integer(&direct.ask(&["EXISTS", &key.name])?) == Some(1) {
                key.stores.push(store);
            }
        }
        line.ask_firmly(&["DEL", &key.name])?;
    }
    match (0..around.len()).find(|store| !keys.iter().any(|key| key.stores.contains(store))) {
        Some(store) => Err(io::Error::other(format!("{} holds none of the keys", around[store]))),
        None => Ok(()),
    }
}
