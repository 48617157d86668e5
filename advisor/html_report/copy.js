// Makes the buttons above code: one copies it, the other saves it as a file. words: their texts.
function codeButtons(root, words) {
  for (const button of root.querySelectorAll("button[data-copy], button[data-save]")) {
    const code = button.closest(".copy").querySelector("code"), file = button.dataset.save;
    const title = file ? words.save : words.copy;
    button.textContent = title;
    button.onclick = async () => {
      if (file) {
        const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([code.textContent])), download: file });
        link.click();
        URL.revokeObjectURL(link.href);
        return;
      }
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      button.textContent = words.copied;
      setTimeout(() => (button.textContent = title), 1500);
    };
  }
}
