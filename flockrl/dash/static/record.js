// A film as a video, written by the browser itself: MP4 where it can, WebM elsewhere.

const KINDS = [["video/mp4;codecs=avc1.42E01E", "mp4"], ["video/mp4;codecs=vp09.00.10.08", "mp4"], ["video/mp4", "mp4"],
  ["video/webm;codecs=vp9", "webm"], ["video/webm;codecs=vp8", "webm"], ["video/webm", "webm"]];

// How this browser writes videos: [type, ending of the file's name], or undefined where it cannot.
export function kind() {
  if (!window.MediaRecorder || !HTMLCanvasElement.prototype.captureStream) return undefined;
  return KINDS.find(([type]) => MediaRecorder.isTypeSupported(type));
}

const wait = (ms) => new Promise((done) => setTimeout(done, ms));

// A blob with all pictures, each shown for `ms`. It takes as long as the film lasts. tell(t): t pictures are written.
// going(): whether it is still wanted; where it is not, null.
export async function record(pictures, ms, tell, going) {
  const [type] = kind();
  await Promise.all(pictures.map((picture) => picture.decode()));
  const even = (size) => size - (size % 2); // some codecs take no others
  const canvas = Object.assign(document.createElement("canvas"), { width: even(pictures[0].naturalWidth), height: even(pictures[0].naturalHeight) });
  const pen = canvas.getContext("2d"), parts = [];
  const stream = canvas.captureStream(), recorder = new MediaRecorder(stream, { mimeType: type, videoBitsPerSecond: 4e6 });
  recorder.ondataavailable = (event) => { if (event.data.size) parts.push(event.data); };
  const over = new Promise((done, fail) => { recorder.onstop = done; recorder.onerror = (event) => fail(event.error || new Error("The browser cannot record this.")); });
  pen.drawImage(pictures[0], 0, 0);
  recorder.start();
  const began = performance.now();
  for (let t = 0; t < pictures.length && going(); t += 1) {
    for (const end = began + (t + 1) * ms; performance.now() < end && going(); ) {
      pen.drawImage(pictures[t], 0, 0); // again and again: a stream has a frame where something was drawn
      await wait(Math.max(0, Math.min(40, end - performance.now())));
    }
    tell(t + 1);
  }
  recorder.stop();
  await over;
  for (const track of stream.getTracks()) track.stop();
  return going() ? new Blob(parts, { type }) : null;
}

// Let the user keep a blob as a file.
export function keep(blob, name) {
  const href = URL.createObjectURL(blob), link = Object.assign(document.createElement("a"), { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}
