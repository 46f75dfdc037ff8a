//! The admin port: metrics and health over HTTP, served by the control executor, a task per connection.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use glommio::net::{TcpListener, TcpStream};
use glommio::timer::timeout;

use super::control_thread::{Control, figures};
use crate::control::http::{self, HEAD_BYTES_MAX, Method, Persistence, Received, Response};
use crate::control::page;

/// Connections at once; more are closed unanswered.
const CONNECTIONS_MAX: usize = 64;
/// A reader that is slower than this is not worth waiting for.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until the executor ends.
pub(super) fn serve(control: Rc<RefCell<Control>>, address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let open = Rc::new(Cell::new(0_usize));
    glommio::spawn_local(async move {
        loop {
            let Ok(stream) = listener.accept().await else {
                // Most likely no descriptor is left; it would fail again at once.
                glommio::timer::sleep(Duration::from_millis(100)).await;
                continue;
            };
            if open.get() >= CONNECTIONS_MAX {
                continue;
            }
            open.set(open.get() + 1);
            let (control, open) = (Rc::clone(&control), Rc::clone(&open));
            glommio::spawn_local(async move {
                // A connection that ends badly is its client's loss alone.
                let _ = converse(&control, stream).await;
                open.set(open.get() - 1);
            })
            .detach();
        }
    })
    .detach();
    Ok(())
}

/// Requests one after the other, until either side has had enough.
async fn converse(control: &Rc<RefCell<Control>>, mut stream: TcpStream) -> io::Result<()> {
    let mut received = Vec::new();
    loop {
        let (response, method, persistence) = match http::receive(&received) {
            Received::Partial => {
                let mut chunk = [0_u8; 2048];
                let Ok(count) = within(stream.read(&mut chunk)).await else { return Ok(()) };
                if count == 0 || received.len() > HEAD_BYTES_MAX {
                    return Ok(());
                }
                received.extend_from_slice(&chunk[..count]);
                continue;
            }
            Received::Request { route, method, persistence, length } => {
                received.drain(..length);
                let totals = if route.needs_figures() { figures(control).await } else { None };
                (page(route, &control.borrow().facts(), totals.as_ref()), method, persistence)
            }
            Received::Refused(status) => (Response::refusal(status), Method::Get, Persistence::Close),
        };
        let mut out = Vec::new();
        response.write(&mut out, method, persistence);
        within(stream.write_all(&out)).await?;
        if persistence == Persistence::Close {
            return within(stream.close()).await;
        }
    }
}

async fn within<T>(work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(REQUEST_TIMEOUT, async move { Ok(work.await) }).await.map_err(io::Error::from)?
}
