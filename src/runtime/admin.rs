//! The admin port: metrics, health and quotas over HTTP, served by the control executor, a task per connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use glommio::Task;
use glommio::net::TcpStream;
use glommio::timer::timeout;
use slab::Slab;

use super::control_thread::{Control, explain, figures, post_quotas};
use super::listen;
use crate::control::foreign;
use crate::control::http::{self, Body, Head, Method, Persistence, Received, Response, Route, Status};
use crate::values::limits::QUOTA_POSTS_BYTES_MAX;

/// Connections at once. For one more, that which has let weir wait longest is closed, so that silent ones shut nobody out.
const CONNECTIONS_MAX: usize = 64;
/// Those that wait to be accepted.
pub(super) const BACKLOG: i32 = 1024;
/// A head, a body and the taking of a reply each take this long at most.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may go on sending what nobody reads, after it was answered.
const LINGER: Duration = Duration::from_secs(2);
/// What is received at once.
const CHUNK_BYTES: usize = 16 * 1024;

/// What all connections share.
struct Admin {
    control: Rc<RefCell<Control>>,
    /// Names by which it may be asked.
    hosts: Vec<String>,
    places: RefCell<Slab<Place>>,
    /// Grows whenever a connection begins to wait for its client.
    waits: Cell<u64>,
    /// Bytes of bodies that are on their way.
    bodies: Cell<usize>,
}

/// Serves until the executor ends; accepts until the task is dropped.
pub(super) fn serve(control: Rc<RefCell<Control>>, socket: OwnedFd, hosts: Vec<String>) -> Task<()> {
    let listener = listen::for_this_executor(socket);
    let places = RefCell::new(Slab::with_capacity(CONNECTIONS_MAX));
    let admin = Rc::new(Admin { control, hosts, places, waits: Cell::new(0), bodies: Cell::new(0) });
    glommio::spawn_local(async move {
        loop {
            let Ok(stream) = listener.accept().await else {
                // Most likely no descriptor is left; it would fail again at once.
                glommio::timer::sleep(Duration::from_millis(100)).await;
                continue;
            };
            if let Some(place) = admin.take_place() {
                let served = Rc::clone(&admin);
                let task = glommio::spawn_local(async move {
                    // A connection that ends badly is its client's loss alone.
                    let _ = converse(&served, place, stream).await;
                    let ended = served.places.borrow_mut().remove(place);
                    ended.task.into_iter().for_each(|task| drop(task.detach()));
                });
                admin.places.borrow_mut()[place].task = Some(task);
            }
        }
    })
}

/// What is known of a connection.
struct Place {
    /// Ends when it is dropped.
    task: Option<Task<()>>,
    /// When it began to wait for its client, as the order of all such waits; none while weir is at work for it.
    waits_since: Option<u64>,
}

impl Admin {
    /// A place for a new connection. None if weir is at work for all that there are.
    fn take_place(&self) -> Option<usize> {
        let mut places = self.places.borrow_mut();
        let evicted = if places.len() < CONNECTIONS_MAX {
            None
        } else {
            let waiting = places.iter().filter_map(|(place, held)| Some((held.waits_since?, place)));
            let (_, longest) = waiting.min()?;
            Some(places.remove(longest))
        };
        let place = places.insert(Place { task: None, waits_since: Some(self.next_wait()) });
        drop(places);
        // Its socket is closed with its task.
        drop(evicted);
        Some(place)
    }

    fn next_wait(&self) -> u64 {
        self.waits.set(self.waits.get() + 1);
        self.waits.get()
    }

    /// Does something with the client that may take as long as the client likes.
    async fn waiting<T>(&self, place: usize, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        self.places.borrow_mut()[place].waits_since = Some(self.next_wait());
        let done = within(work).await;
        self.places.borrow_mut()[place].waits_since = None;
        done
    }
}

/// Requests one after the other, until either side has had enough.
async fn converse(admin: &Admin, place: usize, mut stream: TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        let next = admin.waiting(place, head(&mut stream, &mut received)).await;
        let Ok(received_head) = next else { return Ok(()) };
        let (response, method, persistence) = match received_head {
            Received::Partial => return Ok(()),
            Received::Request(head) if !head.host.is_known(&admin.hosts) => {
                (misdirected(admin, &head), head.method, Persistence::Close)
            }
            Received::Request(head) if head.method == Method::Post => {
                received.drain(..head.length);
                let (response, rest) = post(admin, place, &mut stream, &mut received, &head).await;
                let persistence = if rest == Rest::Read { head.persistence } else { Persistence::Close };
                (response, head.method, persistence)
            }
            Received::Request(head) => {
                received.drain(..head.length);
                let control = &admin.control;
                let response = match foreign(&head) {
                    Some(refusal) => refusal,
                    None if head.route == Route::Explain => explain(control, &head).await,
                    None => {
                        let totals = if head.route.needs_figures() { figures(control).await } else { None };
                        control.borrow_mut().page(&head, totals.as_ref())
                    }
                };
                (response, head.method, head.persistence)
            }
            Received::Refused(response) => (response, Method::Get, Persistence::Close),
        };
        let mut out = Vec::new();
        response.write(&mut out, method, persistence);
        admin.waiting(place, stream.write_all(&out)).await?;
        if persistence == Persistence::Close {
            return admin.waiting(place, linger(stream)).await;
        }
    }
}

/// The reply to a request that calls the server by a name that is not its own.
fn misdirected(admin: &Admin, head: &Head) -> Response {
    let problem = head.host.admit(&admin.hosts, "--admin-host").err().unwrap_or_default();
    Response::problem(Status::MisdirectedRequest, &problem, None)
}

/// Receives until there is a whole head, or none to be expected any more.
async fn head(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<Received> {
    loop {
        let found = http::receive(received);
        if found != Received::Partial {
            return Ok(found);
        }
        // It is refused when it grows too long, so this ends.
        if receive_more(stream, received).await? == 0 {
            return Ok(Received::Partial);
        }
    }
}

async fn receive_more(stream: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<usize> {
    let mut chunk = vec![0_u8; CHUNK_BYTES];
    let count = stream.read(&mut chunk).await?;
    received.extend_from_slice(&chunk[..count]);
    Ok(count)
}

/// Whether a request's body was read to its end, so that another request may follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rest {
    Read,
    Unread,
}

/// Takes a quota file, if it may come in.
async fn post(
    admin: &Admin,
    place: usize,
    stream: &mut TcpStream,
    received: &mut Vec<u8>,
    head: &Head,
) -> (Response, Rest) {
    if let Err(refusal) = admin.control.borrow_mut().admit(head) {
        return (refusal, Rest::Unread);
    }
    let bytes = head.body.bytes() as usize;
    let Some(_room) = Room::take(&admin.bodies, bytes) else {
        let detail = "too many quota files are on their way: one at a time is wanted";
        return (Response::problem(Status::ServiceUnavailable, detail, None), Rest::Unread);
    };
    match admin.waiting(place, body(stream, received, head)).await {
        Ok(body) => (post_quotas(&admin.control, body).await, Rest::Read),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let detail = format!("the body ended before its {bytes} bytes");
            (Response::problem(Status::BadRequest, &detail, None), Rest::Unread)
        }
        Err(_) => {
            let detail = format!("the body did not come within {REQUEST_TIMEOUT:?}");
            (Response::problem(Status::RequestTimeout, &detail, None), Rest::Unread)
        }
    }
}

async fn body(stream: &mut TcpStream, received: &mut Vec<u8>, head: &Head) -> io::Result<Vec<u8>> {
    let bytes = head.body.bytes() as usize;
    if matches!(head.body, Body::Waits(_)) && received.len() < bytes {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    while received.len() < bytes {
        if receive_more(stream, received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let next = received.split_off(bytes);
    Ok(std::mem::replace(received, next))
}

/// A share of the memory that bodies may take, given back when it is dropped.
struct Room<'a> {
    taken: &'a Cell<usize>,
    bytes: usize,
}

impl<'a> Room<'a> {
    fn take(taken: &'a Cell<usize>, bytes: usize) -> Option<Self> {
        let after = taken.get() + bytes;
        (after <= QUOTA_POSTS_BYTES_MAX).then(|| {
            taken.set(after);
            Self { taken, bytes }
        })
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.taken.set(self.taken.get() - self.bytes);
    }
}

/// Closes so that the reply arrives: with a body unread, closing at once would take the reply away from its reader.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(Shutdown::Write).await.map_err(io::Error::from)?;
    let unread = async {
        let mut discarded = Vec::new();
        while receive_more(&mut stream, &mut discarded).await? > 0 {
            discarded.clear();
        }
        io::Result::Ok(())
    };
    // However that ended, nothing more is owed.
    let _ = timeout(LINGER, async move { Ok(unread.await) }).await;
    within(stream.close()).await
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(REQUEST_TIMEOUT, async move { Ok(work.await) }).await.map_err(io::Error::from)?
}
