"use strict";
takeTitles(document);
watchBoxes(document);
codeButtons(document, document.body.dataset);
