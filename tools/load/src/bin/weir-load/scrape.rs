//! Reads a metrics page every second during the load.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::str::FromStr;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use weir_load::stopwatch;

const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_millis(500);
const PAGE_BYTES_MAX: u64 = 16 * 1024 * 1024;
const FAMILIES_MAX: usize = 200;

/// The address of a metrics page: `http://HOST:PORT/PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    host: String,
    path: String,
}

impl FromStr for Page {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = "a page such as http://127.0.0.1:7381/metrics is expected";
        let rest = text.strip_prefix("http://").ok_or(wanted)?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, "metrics"));
        let port = host.rsplit_once(':').and_then(|(name, port)| Some((name, port.parse::<u16>().ok()?)));
        let port = port.filter(|(name, _)| !name.is_empty());
        port.ok_or(wanted)?;
        Ok(Self { host: host.to_owned(), path: format!("/{path}") })
    }
}

/// The metrics on a page at one second of the run: the sum of each metric over its labels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    pub second: u32,
    pub gauges: BTreeMap<String, f64>,
    pub counters: BTreeMap<String, f64>,
}

/// A thread that reads a metrics page every second from its start until it is stopped.
pub struct Scraper {
    page: Page,
    running: Option<(Sender<()>, JoinHandle<Vec<Reading>>)>,
}

impl Scraper {
    pub const fn new(page: Page) -> Self {
        Self { page, running: None }
    }

    pub fn start(&mut self) {
        let (stop, stopped) = bounded(1);
        let page = self.page.clone();
        let thread = std::thread::Builder::new().name("weir-load-scrape".to_owned());
        // Without a thread the report has no metrics, and the load goes on.
        self.running = thread.spawn(move || scrape(&page, &stopped)).ok().map(|handle| (stop, handle));
    }

    pub fn finish(self) -> Vec<Reading> {
        let Some((stop, handle)) = self.running else { return Vec::new() };
        drop(stop);
        handle.join().unwrap_or_default()
    }
}

fn scrape(page: &Page, stopped: &Receiver<()>) -> Vec<Reading> {
    let (mut readings, passed) = (Vec::new(), stopwatch());
    loop {
        let second = passed().as_secs();
        if let Some(text) = fetch(page) {
            readings.push(read(&text, second as u32));
        }
        // A page that takes longer than a second leaves some out.
        let next = EVERY * (passed().as_secs() as u32 + 1);
        if !matches!(stopped.recv_timeout(next.saturating_sub(passed())), Err(RecvTimeoutError::Timeout)) {
            return readings;
        }
    }
}

fn fetch(page: &Page) -> Option<String> {
    let address = page.host.to_socket_addrs().ok()?.next()?;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", page.path, page.host).ok()?;
    let mut bytes = Vec::new();
    // A server that keeps the connection open runs into the timeout; the bytes that have come by then count.
    let _ = stream.take(PAGE_BYTES_MAX).read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    head.lines().next()?.contains(" 200 ").then(|| body.to_owned())
}

/// Adds up the gauges and counters on a metrics page by metric name, over their labels. Summaries and
/// histograms are left out, and metrics beyond 200 of a kind. `second` is the second of the run at which the
/// page was read.
fn read(text: &str, second: u32) -> Reading {
    let mut reading = Reading { second, ..Reading::default() };
    let mut kinds: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            kinds.extend(rest.split_once(' '));
            continue;
        }
        let Some((name, value)) = sample(line) else { continue };
        let family = match kinds.get(name) {
            Some(&"gauge") => &mut reading.gauges,
            Some(&"counter") => &mut reading.counters,
            _ => continue,
        };
        if family.len() < FAMILIES_MAX || family.contains_key(name) {
            *family.entry(name.to_owned()).or_default() += value;
        }
    }
    reading
}

fn sample(line: &str) -> Option<(&str, f64)> {
    let name = &line[..line.find(['{', ' '])?];
    let after_labels = line.rfind('}').map_or(&line[name.len()..], |end| &line[end + 1..]);
    let value: f64 = after_labels.split_ascii_whitespace().next()?.parse().ok()?;
    (!name.is_empty() && !name.starts_with('#') && value.is_finite()).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages() {
        let page = |host: &str, path: &str| Page { host: host.to_owned(), path: path.to_owned() };
        assert_eq!("http://127.0.0.1:7381/metrics".parse(), Ok(page("127.0.0.1:7381", "/metrics")));
        assert_eq!("http://a:1".parse(), Ok(page("a:1", "/metrics")));
        for text in ["127.0.0.1:7381", "https://a:1/", "http://a/metrics", "http://:1/"] {
            assert!(text.parse::<Page>().is_err(), "{text}");
        }
    }

    #[test]
    fn families_are_added_up() {
        let text = "# TYPE a gauge\na{x=\"}\"} 1\na{x=\"2\"} 2.5\n# TYPE b_total counter\nb_total 7\n# TYPE h histogram\n\
                    h_bucket{le=\"1\"} 5\nodd\n";
        let reading = read(text, 3);
        assert_eq!(reading.gauges, BTreeMap::from([("a".to_owned(), 3.5)]));
        assert_eq!(reading.counters, BTreeMap::from([("b_total".to_owned(), 7.0)]));
    }
}
