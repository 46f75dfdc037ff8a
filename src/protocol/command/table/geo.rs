//! Entries of the table of commands: commands on geographic places.

use super::super::{Command, Keys};
use super::build::{read, write};

pub(super) const COMMANDS: &[Command] = &[
    write("geoadd", -5).needs_memory(),
    read("geodist", -4),
    read("geohash", -2),
    read("geopos", -2),
    write("georadius", -6).hides_work().needs_memory().movable(Keys::GeoStore).over_range(),
    read("georadius_ro", -6).hides_work().over_range(),
    write("georadiusbymember", -5).hides_work().needs_memory().movable(Keys::GeoStore).over_range(),
    read("georadiusbymember_ro", -5).hides_work().over_range(),
    read("geosearch", -7).hides_work().over_range(),
    write("geosearchstore", -8).hides_work().needs_memory().keys(1, 2, 1).over_range(),
];
