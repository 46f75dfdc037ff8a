//! Reads the costs that a Redis server reports about itself in `INFO`.

/// Returns the user and system CPU time that the server has used since its start, in seconds, from the text
/// of `INFO`; `None` if that lacks it.
pub fn cpu_seconds(info: &str) -> Option<f64> {
    Some(number(info, "used_cpu_user")? + number(info, "used_cpu_sys")?)
}

/// Returns from the text of `INFO` how often a command was carried out, and the microseconds that it took in
/// all; zeros for a command that never was. `None` if the command's line is malformed.
pub fn command(info: &str, name: &str) -> Option<(u64, u64)> {
    let Some(figures) = field(info, &format!("cmdstat_{name}")) else { return Some((0, 0)) };
    let figure = |wanted: &str| {
        let pair =
            figures.split(',').filter_map(|pair| pair.split_once('=')).find(|(name, _)| *name == wanted)?;
        pair.1.parse().ok()
    };
    Some((figure("calls")?, figure("usec")?))
}

/// Returns the value of a numeric field from the text of `INFO`; `None` if there is none, or it is no
/// number.
pub fn number(info: &str, name: &str) -> Option<f64> {
    field(info, name)?.parse().ok()
}

/// Returns the value of a field, as text, from the text of `INFO`; `None` if there is none.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "# CPU\r\nused_cpu_sys:1.250000\r\nused_cpu_user:2.500000\r\nused_cpu_sys_children:9.0\r\n\
                        # Commandstats\r\ncmdstat_get:calls=21,usec=63,usec_per_call=3.00,rejected_calls=0\r\n\
                        cmdstat_getset:calls=1,usec=2\r\ncmdstat_odd:calls=one,usec=2\r\n";

    #[test]
    fn figures_are_found_by_their_whole_names() {
        assert_eq!(cpu_seconds(INFO), Some(3.75));
        assert_eq!(command(INFO, "get"), Some((21, 63)));
        assert_eq!(command(INFO, "set"), Some((0, 0)));
        assert_eq!((command(INFO, "odd"), cpu_seconds("# CPU\r\n")), (None, None));
    }
}
